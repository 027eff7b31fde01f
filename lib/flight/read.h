/*
 * Inside the file of a rank. Where a function takes a number that a file holds, it may be any.
 */
#ifndef CT_FLIGHT_READ_H
#define CT_FLIGHT_READ_H

#include <stdatomic.h>

#include <ctitan/lib/flight.h>
#include <ctitan/lib/flight_record.h>

const char *ct_flight_string(const struct ct_flight_header *h, uint32_t at);
/* The planned instruction, or NULL. */
const struct ct_flight_instruction *ct_flight_instruction(const struct ct_flight_header *h,
                                                          int program, int64_t index);
bool ct_flight_is_group(const struct ct_flight_header *h, int64_t group);
/* The record with this id, NULL if it was overwritten; the first that may still be there. */
const struct ct_flight_record *ct_flight_at(const struct ct_flight_header *h, uint64_t id);
uint64_t ct_flight_first(const struct ct_flight_header *h);

/* A copy of where the rank is, which it changes as long as it lives. */
struct ct_flight_position ct_flight_position(const struct ct_flight_header *h);

/* A call of a group by its sequence, or, if that is 0, by instruction and step. */
struct ct_flight_query {
    int kind, group, program;
    int64_t sequence, index, step;
};
/* The latest such record; NULL: overwritten, or never made. */
const struct ct_flight_record *ct_flight_find(const struct ct_flight_header *h,
                                              const struct ct_flight_query *query);

/* "all_reduce", of an enum ct_call_kind; "a call" if it is none. */
const char *ct_flight_call_name(int32_t kind);

#endif

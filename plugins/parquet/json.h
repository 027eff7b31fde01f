#ifndef JSON_H
#define JSON_H

#include <string>

#include <arrow/api.h>

/* Whether all values of a type can be written. */
bool json_knows(const arrow::DataType &type);
/* Append value number `row` of an array, whose type is known. Throws std::runtime_error. */
void json_write(std::string &out, const arrow::Array &array, int64_t row);
/* Append a text in quotation marks. */
void json_quote(std::string &out, std::string_view text);

#endif

/*
 * Where rank 0 listens: an abstract socket for ranks of one host, otherwise a TCP port. A name may
 * have several addresses, which are tried in turn.
 */
#ifndef NCCL_ADDRESS_H
#define NCCL_ADDRESS_H

#include <sys/socket.h>

#include <ctitan/comm.h>

#define ADDRESSES 16 /* of one host, at most */

struct address {
    struct sockaddr_storage at;
    socklen_t length;
};

struct addresses {
    struct address list[ADDRESSES];
    int count;
    char name[160]; /* for messages */
};

/* By the environment, [nccl] port and the job's name. CT_ECONFIG: they name no place;
   CT_EPEER: no name server answers within request->timeout. */
int nccl_address_find(const struct ct_comm_request *request, struct addresses *addresses);
/* Rank 0: returns a non-blocking socket that listens, or CT_ECONFIG if the place is taken. */
int nccl_address_listen(const struct addresses *addresses, const struct ct_comm_request *request);
/* Whether a process of this user, or a host on that interface (NULL, empty: any), is at the other
   end of an accepted socket. */
bool nccl_address_may_come(int socket, const char *interface);
/* Returns a non-blocking socket that is connected, or CT_EPEER after `timeout` seconds. */
int nccl_address_join(const struct addresses *addresses, double timeout);

#endif

/* The socket to the agent (records.h). Who cannot send ends: nobody is there any more. */
#ifndef TB_CHANNEL_H
#define TB_CHANNEL_H

#include <linux/types.h>
#include <stddef.h>

enum { MAX_HIERARCHIES = 2, MAX_TEXT = 512 };

struct descriptors {
	int numbers[2 * MAX_HIERARCHIES];
	int count;
};

/* One datagram; `descriptors` may be NULL. Waits while the agent does not read: the kernel's ring then fills up. */
void send_packet(int socket, __u32 kind, const void *payload, size_t size, const struct descriptors *descriptors);

/* TB_STATUS of a unit; `failure` is empty if it is there. */
void send_status(int socket, const char *name, const char *failure);

#endif

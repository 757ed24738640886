#include "channel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "records.h"

static void add_descriptors(struct msghdr *message, char *control, const struct descriptors *descriptors)
{
	size_t size = sizeof(int) * descriptors->count;
	struct cmsghdr *rights;

	message->msg_control = control;
	message->msg_controllen = CMSG_SPACE(size);
	rights = CMSG_FIRSTHDR(message);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(rights), descriptors->numbers, size);
}

void send_packet(int socket, __u32 kind, const void *payload, size_t size, const struct descriptors *descriptors)
{
	struct tb_header header = {.version = TB_VERSION, .kind = kind};
	struct iovec parts[] = {{&header, sizeof(header)}, {(void *)payload, size}};
	char control[CMSG_SPACE(sizeof(int) * 2 * MAX_HIERARCHIES)] __attribute__((aligned(sizeof(struct cmsghdr)))) = {};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

	if (descriptors)
		add_descriptors(&message, control, descriptors);
	if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
		exit(EXIT_SUCCESS);
}

void send_status(int socket, const char *name, const char *failure)
{
	char text[MAX_TEXT + 64];

	snprintf(text, sizeof(text), *failure ? "%s failed: %s" : "%s ok", name, failure);
	send_packet(socket, TB_STATUS, text, strlen(text), NULL);
}

/* turnbuckle-kernel: loads the programs beside it and hands what they see to the agent that started it.
 *
 *	turnbuckle-kernel --objects DIR --hierarchy DIR [--hierarchy DIR] --socket FD
 *
 * It needs the rights to load programs for a moment; the agent needs none of them. The table of control groups goes
 * over as descriptors, which the agent reads by itself. When the socket closes the loader ends, and the kernel takes
 * everything back. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/types.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "records.h"

enum { MAX_HIERARCHIES = 2, MAX_TEXT = 512, EXIT_USAGE = 64 };

struct options {
	const char *objects;
	const char *hierarchies[MAX_HIERARCHIES];
	int hierarchy_count;
	int socket;
};

static void send_packet(int socket, __u32 kind, const void *payload, size_t size, const int *descriptors, int count)
{
	struct tb_header header = {.version = TB_VERSION, .kind = kind};
	struct iovec parts[] = {{&header, sizeof(header)}, {(void *)payload, size}};
	char control[CMSG_SPACE(sizeof(int) * MAX_HIERARCHIES)] = {};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

	if (count) {
		struct cmsghdr *rights;

		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
		rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
		memcpy(CMSG_DATA(rights), descriptors, sizeof(int) * count);
	}
	if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
		exit(EXIT_FAILURE); /* nobody is there any more */
}

static void tell(int socket, const char *format, ...)
{
	char text[MAX_TEXT];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	send_packet(socket, TB_STATUS, text, strlen(text), NULL, 0);
}

/* libbpf's last warning: what it returns is only a number. */
static char last_warning[MAX_TEXT];

static int keep_warning(enum libbpf_print_level level, const char *format, va_list arguments)
{
	if (level == LIBBPF_WARN)
		vsnprintf(last_warning, sizeof(last_warning), format, arguments);
	return 0;
}

static struct bpf_object *load(const char *directory, const char *name)
{
	char path[MAX_TEXT];
	struct bpf_object *object;
	struct bpf_map *map;

	snprintf(path, sizeof(path), "%s/%s.bpf.o", directory, name);
	object = bpf_object__open(path);
	if (!object)
		return NULL;
	map = bpf_object__find_map_by_name(object, ".rodata");
	if (map) {
		size_t size;
		struct {
			__u32 cpu_count;
			__u64 page_bytes;
		} *constants = (void *)bpf_map__initial_value(map, &size);

		if (constants && size >= sizeof(*constants)) {
			constants->cpu_count = libbpf_num_possible_cpus();
			constants->page_bytes = sysconf(_SC_PAGESIZE);
		}
	}
	if (bpf_object__load(object)) {
		bpf_object__close(object);
		return NULL;
	}
	return object;
}

static int attach_table(struct bpf_object *object, const char *directory)
{
	union bpf_iter_link_info below = {.cgroup.order = BPF_CGROUP_ITER_DESCENDANTS_PRE};
	LIBBPF_OPTS(bpf_iter_attach_opts, options, .link_info = &below, .link_info_len = sizeof(below));
	struct bpf_link *link;

	below.cgroup.cgroup_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if ((int)below.cgroup.cgroup_fd < 0)
		return -errno;
	link = bpf_program__attach_iter(bpf_object__next_program(object, NULL), &options);
	close(below.cgroup.cgroup_fd);
	return link ? bpf_link__fd(link) : -errno;
}

static void offer_table(const struct options *options)
{
	struct bpf_object *object = load(options->objects, "cgroups");
	int links[MAX_HIERARCHIES];

	if (!object) {
		tell(options->socket, "cgroups failed: %s (%s)", strerror(errno), last_warning);
		return;
	}
	for (int i = 0; i < options->hierarchy_count; i++) {
		links[i] = attach_table(object, options->hierarchies[i]);
		if (links[i] < 0) {
			tell(options->socket, "cgroups failed: %s: %s", options->hierarchies[i], strerror(-links[i]));
			return;
		}
	}
	send_packet(options->socket, TB_TABLE, NULL, 0, links, options->hierarchy_count);
	tell(options->socket, "cgroups ok");
}

static int read_options(int argc, char **argv, struct options *options)
{
	static const struct option known[] = {{"objects", required_argument, NULL, 'o'},
					      {"hierarchy", required_argument, NULL, 'h'},
					      {"socket", required_argument, NULL, 's'},
					      {}};
	int found;

	*options = (struct options){.socket = -1};
	while ((found = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (found == 'o')
			options->objects = optarg;
		else if (found == 's')
			options->socket = atoi(optarg);
		else if (found == 'h' && options->hierarchy_count < MAX_HIERARCHIES)
			options->hierarchies[options->hierarchy_count++] = optarg;
		else
			return EXIT_USAGE;
	}
	return options->objects && options->socket >= 0 && options->hierarchy_count ? 0 : EXIT_USAGE;
}

int main(int argc, char **argv)
{
	struct options options;
	char nothing;

	if (read_options(argc, argv, &options)) {
		fprintf(stderr, "usage: %s --objects DIR --hierarchy DIR [--hierarchy DIR] --socket FD\n", argv[0]);
		return EXIT_USAGE;
	}
	libbpf_set_print(keep_warning);
	offer_table(&options);
	send_packet(options.socket, TB_READY, NULL, 0, NULL, 0);
	while (recv(options.socket, &nothing, sizeof(nothing), 0) > 0)
		;
	return EXIT_SUCCESS;
}

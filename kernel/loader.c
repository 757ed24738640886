/* turnbuckle-kernel: loads the programs beside it and hands what they see to the agent that started it.
 *
 *	turnbuckle-kernel --objects DIR --hierarchy DIR [...] [--ring-bytes N] [--interval-ms N] --socket FD
 *	turnbuckle-kernel --objects DIR [--hierarchy DIR [...]] --check [--json]
 *
 * It needs the rights to load programs for a moment; the agent needs none of them. The table of control groups goes
 * over as descriptors, which the agent reads by itself. When the socket closes the loader ends, and the kernel takes
 * everything back. The agent is who started it. */
#include <errno.h>
#include <getopt.h>
#include <linux/magic.h>
#include <linux/types.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "records.h"
#include "report.h"
#include "units.h"

enum { BATCH_BYTES = 1 << 14, EXIT_USAGE = 64, EXIT_UNAVAILABLE = 69 };

struct options {
	struct request request;
	int socket;
	int interval_ms; /* that a record may wait for others; 0: none does */
	bool check;
	bool json;
};

/* The ring of one unit, and its records on their way. */
struct feed {
	const struct unit *unit;
	int socket;
	const volatile __u64 *lost;
	size_t filled;
	char batch[BATCH_BYTES];
};

static void flush(struct feed *feed)
{
	if (feed->filled)
		send_packet(feed->socket, feed->unit->kind, feed->batch, feed->filled, NULL);
	feed->filled = 0;
}

static int take(void *context, void *record, size_t size)
{
	struct feed *feed = context;

	if (size != feed->unit->record_bytes)
		return 0;
	if (feed->filled + size > sizeof(feed->batch))
		flush(feed);
	memcpy(feed->batch + feed->filled, record, size);
	feed->filled += size;
	return 0;
}

/* The program's own variable, without asking the kernel each time. */
static const volatile __u64 *map_lost(struct bpf_object *object)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, ".bss");
	void *page = MAP_FAILED;

	if (map)
		page = mmap(NULL, sysconf(_SC_PAGESIZE), PROT_READ, MAP_SHARED, bpf_map__fd(map), 0);
	return page == MAP_FAILED ? NULL : page;
}

/* The ring buffers of all units that have one; NULL: there are none. */
static struct ring_buffer *open_rings(const struct loaded *loaded, struct feed *feeds, int socket)
{
	struct ring_buffer *rings = NULL;

	for (int i = 0; i < UNIT_COUNT; i++) {
		struct bpf_map *map = NULL;

		feeds[i] = (struct feed){.unit = &units[i], .socket = socket};
		if (loaded[i].count && units[i].record_bytes)
			map = bpf_object__find_map_by_name(loaded[i].objects[0], "records");
		if (!map)
			continue;
		feeds[i].lost = map_lost(loaded[i].objects[0]);
		if (!rings)
			rings = ring_buffer__new(bpf_map__fd(map), take, &feeds[i], NULL);
		else if (ring_buffer__add(rings, bpf_map__fd(map), take, &feeds[i]))
			exit(EXIT_FAILURE);
		if (!rings)
			exit(EXIT_FAILURE);
	}
	return rings;
}

static void tell_lost(const struct feed *feeds, int socket, __u64 *told)
{
	__u64 lost = 0;

	for (int i = 0; i < UNIT_COUNT; i++)
		lost += feeds[i].lost ? *feeds[i].lost : 0;
	if (lost != *told)
		send_packet(socket, TB_LOST, &lost, sizeof(lost), NULL);
	*told = lost;
}

/* Until the agent closes its end. What has come goes out at once, alone or with what came meanwhile; or an interval
 * after the first: to wake this process for each record costs more than all else that is done about it. Where nothing
 * comes it sleeps. */
static void stream(const struct loaded *loaded, int socket, int interval_ms)
{
	static struct feed feeds[UNIT_COUNT];
	struct ring_buffer *rings = open_rings(loaded, feeds, socket);
	struct pollfd sources[] = {{.fd = socket, .events = POLLIN},
				   {.fd = rings ? ring_buffer__epoll_fd(rings) : -1, .events = POLLIN}};
	__u64 told = 0;
	char nothing;

	while (poll(sources, 2, -1) >= 0 || errno == EINTR) {
		if (sources[0].revents && recv(socket, &nothing, sizeof(nothing), 0) <= 0)
			return;
		if (!sources[1].revents)
			continue;
		if (interval_ms)
			poll(sources, 1, interval_ms); /* ends early with the agent */
		ring_buffer__consume(rings);
		for (int i = 0; i < UNIT_COUNT; i++)
			flush(&feeds[i]);
		tell_lost(feeds, socket, &told);
	}
}

static int serve(const struct options *options)
{
	struct loaded loaded[UNIT_COUNT];
	bool any = false;

	for (int i = 0; i < UNIT_COUNT; i++) {
		load_unit(&units[i], &options->request, &loaded[i]);
		if (loaded[i].handed.count)
			send_packet(options->socket, units[i].kind, NULL, 0, &loaded[i].handed);
		send_status(options->socket, units[i].name, loaded[i].failure);
		any = any || loaded[i].count;
	}
	send_packet(options->socket, TB_READY, NULL, 0, NULL);
	if (!any)
		return EXIT_UNAVAILABLE;
	stream(loaded, options->socket, options->interval_ms);
	return EXIT_SUCCESS;
}

/* Loads and attaches everything, says how that went, and leaves nothing behind. */
static int check(const struct options *options)
{
	int failed = 0;

	if (options->json)
		putchar('[');
	for (int i = 0; i < UNIT_COUNT; i++) {
		struct loaded loaded;

		load_unit(&units[i], &options->request, &loaded);
		if (options->json && i)
			printf(", ");
		print_result(units[i].name, loaded.failure, options->json);
		failed += !loaded.count;
	}
	if (options->json)
		puts("]");
	return failed ? EXIT_UNAVAILABLE : EXIT_SUCCESS;
}

/* Where they usually are. */
static void add_usual_hierarchies(struct request *request)
{
	struct statfs found;

	if (!statfs("/sys/fs/cgroup", &found) && found.f_type == CGROUP2_SUPER_MAGIC) {
		request->hierarchies[request->hierarchy_count++] = "/sys/fs/cgroup";
		return;
	}
	request->hierarchies[request->hierarchy_count++] = "/sys/fs/cgroup/cpu";
	request->hierarchies[request->hierarchy_count++] = "/sys/fs/cgroup/memory";
}

static bool read_options(int argc, char **argv, struct options *options)
{
	static const struct option known[] = {
		{"objects", required_argument, NULL, 'o'}, {"hierarchy", required_argument, NULL, 'h'},
		{"socket", required_argument, NULL, 's'},  {"ring-bytes", required_argument, NULL, 'r'},
		{"check", no_argument, NULL, 'c'},         {"json", no_argument, NULL, 'j'},
		{"interval-ms", required_argument, NULL, 'i'},
		{},
	};
	struct request *request = &options->request;
	int found;

	*options = (struct options){.socket = -1, .request.agent_pid = getppid()};
	while ((found = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (found == 'o')
			request->objects = optarg;
		else if (found == 's')
			options->socket = atoi(optarg);
		else if (found == 'r')
			request->ring_bytes = strtoul(optarg, NULL, 10);
		else if (found == 'i')
			options->interval_ms = atoi(optarg);
		else if (found == 'c')
			options->check = true;
		else if (found == 'j')
			options->json = true;
		else if (found == 'h' && request->hierarchy_count < MAX_HIERARCHIES)
			request->hierarchies[request->hierarchy_count++] = optarg;
		else
			return false;
	}
	if (options->check && !request->hierarchy_count)
		add_usual_hierarchies(request);
	return optind == argc && request->objects && request->hierarchy_count &&
	       options->check == (options->socket < 0);
}

int main(int argc, char **argv)
{
	struct options options;

	if (!read_options(argc, argv, &options)) {
		fprintf(stderr,
			"usage: %s --objects DIR --hierarchy DIR [...] [--ring-bytes N] [--interval-ms N] --socket FD\n"
			"       %s --objects DIR [--hierarchy DIR [...]] --check [--json]\n",
			argv[0], argv[0]);
		return EXIT_USAGE;
	}
	libbpf_set_print(keep_warning);
	return options.check ? check(&options) : serve(&options);
}

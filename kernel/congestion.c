/* turnbuckle-congestion: offers MLTCP to this host's TCP, hands its records to the runner that started it, and programs
 * that give a congestion control to a control group.
 *
 *	turnbuckle-congestion --objects DIR [--mltcp off|restricted|everybody] [--slope N] [--intercept N] --socket FD
 *	turnbuckle-congestion --objects DIR --check [--json]
 *
 * Slope and intercept of F(r) are in units of 1/1024; 0 and 1024 make it Reno. The socket is as the other loader's
 * (records.h). When it closes the loader ends, however that comes, and the kernel takes everything back: connections
 * that are open keep their congestion control, new ones get the host's. */
#define _GNU_SOURCE /* memmem */
#include <bpf/bpf.h>
#include <errno.h>
#include <getopt.h>
#include <linux/bpf.h>
#include <linux/types.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "channel.h"
#include "constants.h"
#include "records.h"
#include "report.h"

#ifndef BPF_F_LINK
#define BPF_F_LINK (1U << 13)
#endif
#define ATTACH_STRUCT_OPS 44 /* BPF_STRUCT_OPS of enum bpf_attach_type, which libbpf 1.1 does not know yet */

enum { EXIT_USAGE = 64, EXIT_UNAVAILABLE = 69, MAX_PATH = 256, MAX_BATCH = 64, CPUS = 4096 };
enum { MAX_OBJECT_BYTES = 1 << 20, MAX_NAMES_BYTES = 1 << 12, MAX_RUNNERS = 100 };

static const char *const algorithms[] = {"mltcp", "mltcp_cubic"};
enum { ALGORITHM_COUNT = sizeof(algorithms) / sizeof(*algorithms) };
static const char available[] = "/proc/sys/net/ipv4/tcp_available_congestion_control";

struct options {
	const char *objects;
	const char *mltcp;
	__u32 slope, intercept;
	int socket;
	bool check, json;
};

/* An algorithm, and the name that it has on this host. */
struct offered {
	const char *algorithm;
	char registered[TB_CONGESTION_BYTES];
	struct bpf_object *object; /* NULL: it is not there */
};

/* Iterations on their way to the runner. */
struct feed {
	int socket;
	int count;
	struct tb_iteration batch[MAX_BATCH];
};

/* The file, with the name that it registers in its place; libbpf before 1.5 cannot change it after that. */
static struct bpf_object *open_file(const char *path, const char *registered)
{
	static const char place[TB_CONGESTION_BYTES] = TB_NAME_PLACE;
	static char content[MAX_OBJECT_BYTES]; /* needed until it is loaded */
	FILE *file = fopen(path, "re");
	size_t size = file ? fread(content, 1, sizeof(content), file) : 0;
	char *at;

	if (file)
		fclose(file);
	while ((at = memmem(content, size, place, sizeof(place))))
		strncpy(at, registered, sizeof(place));
	return size ? bpf_object__open_mem(content, size, NULL) : NULL;
}

/* An object whose constants are set, ready to be loaded; NULL: it is not there. */
static struct bpf_object *open_object(const struct options *options, const char *file, const char *name, char *failure)
{
	char path[MAX_PATH];
	size_t size = 0;
	struct bpf_object *object;
	struct bpf_map *map;
	struct tb_congestion_constants *constants;

	snprintf(path, sizeof(path), "%s/%s.bpf.o", options->objects, file);
	object = open_file(path, name);
	if (!object) {
		fail(failure, "%s: %s", path, strerror(errno));
		return NULL;
	}
	map = bpf_object__find_map_by_name(object, ".rodata");
	constants = map ? (void *)bpf_map__initial_value(map, &size) : NULL;
	if (!constants || size != sizeof(*constants) || constants->version != TB_VERSION) {
		fail(failure, "%s was not built with this loader: make kernel", path);
		bpf_object__close(object);
		return NULL;
	}
	constants->slope = options->slope;
	constants->intercept = options->intercept;
	snprintf(constants->name, sizeof(constants->name), "%s", name);
	return object;
}

/* A BPF link keeps it, so that it goes with this process: libbpf before 1.2 registers without one, for good.
 * Returns 0, or the error. */
static int link_struct_ops(const struct bpf_map *map)
{
	union bpf_attr attributes;

	if (!bpf_map__attach_struct_ops(map)) /* fills the map; with BPF_F_LINK no more than that */
		return errno;
	memset(&attributes, 0, sizeof(attributes));
	attributes.link_create.prog_fd = bpf_map__fd(map);
	attributes.link_create.attach_type = ATTACH_STRUCT_OPS;
	return syscall(__NR_bpf, BPF_LINK_CREATE, &attributes, sizeof(attributes)) < 0 ? errno : 0;
}

/* Of the two variants of an algorithm the one that is not wanted stays out. */
static struct bpf_map *choose_variant(struct bpf_object *object, const char *algorithm, bool everybody)
{
	struct bpf_map *map, *chosen = NULL;

	bpf_object__for_each_map(map, object) {
		bool restricted = !strcmp(bpf_map__name(map), algorithm);

		if (bpf_map__type(map) != BPF_MAP_TYPE_STRUCT_OPS)
			continue;
		if (restricted == everybody) {
			bpf_map__set_autocreate(map, false);
			continue;
		}
		bpf_map__set_map_flags(map, BPF_F_LINK);
		chosen = map;
	}
	return chosen;
}

static bool has_links(char *failure)
{
	struct utsname host;
	int major = 0, minor = 0;

	uname(&host);
	if (sscanf(host.release, "%d.%d", &major, &minor) == 2 && (major < 6 || (major == 6 && minor < 4)))
		return fail(failure, "kernel %s: BPF links of congestion controls need 6.4", host.release);
	return true;
}

/* The names that the host knows, each between spaces. */
static void read_available(char *names, size_t size)
{
	FILE *file = fopen(available, "re");

	snprintf(names, size, " ");
	if (file && fgets(names + 1, size - 1, file))
		names[strcspn(names, "\n")] = ' ';
	if (file)
		fclose(file);
}

static bool among(const char *names, const char *name)
{
	char word[TB_CONGESTION_BYTES + 2];

	snprintf(word, sizeof(word), " %s ", name);
	return strstr(names, word);
}

/* Load an algorithm and register it by this name. Returns 0, or the error that `failure` tells. */
static int offer_as(const struct options *options, struct offered *offered, char *failure)
{
	struct bpf_program *program;
	struct bpf_map *map;
	char *log = begin_log();
	int error;

	offered->object = open_object(options, offered->algorithm, offered->registered, failure);
	if (!offered->object)
		return ENOENT;
	map = choose_variant(offered->object, offered->algorithm, !strcmp(options->mltcp, "everybody"));
	bpf_object__for_each_program(program, offered->object)
		bpf_program__set_log_buf(program, log, LOG_BYTES);
	if (bpf_object__load(offered->object)) {
		error = errno;
		explain_refusal(error, failure);
	} else if ((error = link_struct_ops(map))) {
		fail(failure, "it cannot be registered: %s", strerror(error));
	}
	if (error) {
		bpf_object__close(offered->object);
		offered->object = NULL;
	}
	return error;
}

/* Other runners of this host, or one that is just being ended, may have the first names. */
static bool offer(const struct options *options, struct offered *offered, char *failure)
{
	char names[MAX_NAMES_BYTES];
	int error = EEXIST;

	failure[0] = '\0';
	if (!has_links(failure))
		return false;
	for (int number = 1; error == EEXIST && number < MAX_RUNNERS; number++) {
		snprintf(offered->registered, sizeof(offered->registered), number > 1 ? "%s_%d" : "%s",
			 offered->algorithm, number);
		read_available(names, sizeof(names));
		if (!among(names, offered->registered))
			error = offer_as(options, offered, failure);
	}
	if (!error)
		failure[0] = '\0';
	else if (!failure[0])
		fail(failure, "%d processes of this host offer it already", MAX_RUNNERS - 1);
	return !error;
}

/* The program that gives `name`: its descriptor, below 0: `failure` says why there is none. */
static int load_sockops(const struct options *options, const char *name, char *failure)
{
	struct bpf_object *object;
	struct bpf_program *program;
	char *log = begin_log();

	failure[0] = '\0';
	object = open_object(options, "sockops", name, failure);
	if (!object)
		return -1;
	program = bpf_object__find_program_by_name(object, "choose");
	bpf_program__set_log_buf(program, log, LOG_BYTES);
	if (bpf_object__load(object)) {
		explain_refusal(errno, failure);
		bpf_object__close(object);
		return -1;
	}
	return bpf_program__fd(program);
}

static bool hand_program(const struct options *options, const char *name, const char *registered, char *failure)
{
	struct descriptors program = {.numbers = {load_sockops(options, registered, failure)}, .count = 1};
	char names[2 * TB_CONGESTION_BYTES + 1];

	if (program.numbers[0] < 0)
		return false;
	snprintf(names, sizeof(names), "%s %s", name, registered);
	send_packet(options->socket, TB_SOCKOPS, names, strlen(names), &program);
	return true;
}

/* One program for each congestion control that the host has now; of other runners' MLTCP none. */
static bool hand_sockops(const struct options *options, const struct offered *offered)
{
	char names[MAX_NAMES_BYTES], failure[MAX_REASON] = "";
	bool any = false;

	for (int i = 0; i < ALGORITHM_COUNT; i++)
		if (offered[i].object)
			any = hand_program(options, offered[i].algorithm, offered[i].registered, failure) || any;
	read_available(names, sizeof(names));
	for (char *name = strtok(names, " "); name; name = strtok(NULL, " "))
		if (strncmp(name, algorithms[0], strlen(algorithms[0])))
			any = hand_program(options, name, name, failure) || any;
	send_status(options->socket, "sockops", failure);
	return any;
}

static void flush(struct feed *feed)
{
	if (feed->count)
		send_packet(feed->socket, TB_ITERATIONS, feed->batch, feed->count * sizeof(*feed->batch), NULL);
	feed->count = 0;
}

static int take(void *context, void *record, size_t size)
{
	struct feed *feed = context;

	if (size != sizeof(struct tb_iteration))
		return 0;
	if (feed->count == MAX_BATCH)
		flush(feed);
	memcpy(&feed->batch[feed->count++], record, size);
	return 0;
}

static void tell_counters(const struct offered *offered, int socket)
{
	static struct tb_congestion_counters of_cpus[CPUS];
	struct tb_congestion_counters sum = {};
	int cpus = libbpf_num_possible_cpus();
	__u32 zero = 0;

	for (int i = 0; i < ALGORITHM_COUNT; i++) {
		int map = offered[i].object ? bpf_object__find_map_fd_by_name(offered[i].object, "counters") : -1;

		if (map < 0 || cpus > CPUS || bpf_map_lookup_elem(map, &zero, of_cpus))
			continue;
		for (int cpu = 0; cpu < cpus; cpu++) {
			sum.flows += of_cpus[cpu].flows;
			sum.iterations += of_cpus[cpu].iterations;
			sum.scaled_acks += of_cpus[cpu].scaled_acks;
			sum.lost += of_cpus[cpu].lost;
		}
	}
	send_packet(socket, TB_CONGESTION_COUNTERS, &sum, sizeof(sum), NULL);
}

static struct ring_buffer *open_rings(const struct offered *offered, struct feed *feed)
{
	struct ring_buffer *rings = NULL;

	for (int i = 0; i < ALGORITHM_COUNT; i++) {
		int map = offered[i].object ? bpf_object__find_map_fd_by_name(offered[i].object, "records") : -1;

		if (map < 0)
			continue;
		if (!rings)
			rings = ring_buffer__new(map, take, feed, NULL);
		else if (ring_buffer__add(rings, map, take, feed))
			exit(EXIT_FAILURE);
		if (!rings)
			exit(EXIT_FAILURE);
	}
	return rings;
}

/* Until the runner closes its end. */
static void stream(const struct offered *offered, int socket)
{
	static struct feed feed;
	struct ring_buffer *rings = open_rings(offered, &feed);
	struct pollfd sources[] = {{.fd = socket, .events = POLLIN},
				   {.fd = rings ? ring_buffer__epoll_fd(rings) : -1, .events = POLLIN}};
	char asked;

	feed.socket = socket;
	while (poll(sources, 2, -1) >= 0 || errno == EINTR) {
		if (sources[0].revents && recv(socket, &asked, sizeof(asked), 0) <= 0)
			return;
		if (sources[1].revents)
			ring_buffer__consume(rings);
		flush(&feed);
		tell_counters(offered, socket);
	}
}

static int serve(const struct options *options)
{
	struct offered offered[ALGORITHM_COUNT] = {};
	char failure[MAX_REASON];
	bool any;

	for (int i = 0; i < ALGORITHM_COUNT && strcmp(options->mltcp, "off"); i++) {
		offered[i].algorithm = algorithms[i];
		offer(options, &offered[i], failure);
		send_status(options->socket, algorithms[i], failure);
	}
	any = hand_sockops(options, offered);
	send_packet(options->socket, TB_READY, NULL, 0, NULL);
	if (!any)
		return EXIT_UNAVAILABLE;
	stream(offered, options->socket);
	return EXIT_SUCCESS;
}

/* Offers everything for a moment, says how that went, and leaves nothing behind. */
static int check(const struct options *options)
{
	char failure[MAX_REASON];
	bool failed = false;

	if (options->json)
		putchar('[');
	for (int i = 0; i < ALGORITHM_COUNT; i++) {
		struct offered offered = {.algorithm = algorithms[i]};

		failed = !offer(options, &offered, failure) || failed;
		print_result(algorithms[i], failure, options->json);
		if (options->json)
			printf(", ");
	}
	failed = load_sockops(options, "reno", failure) < 0 || failed;
	print_result("sockops", failure, options->json);
	if (options->json)
		puts("]");
	return failed ? EXIT_UNAVAILABLE : EXIT_SUCCESS;
}

static bool read_options(int argc, char **argv, struct options *options)
{
	static const struct option known[] = {
		{"objects", required_argument, NULL, 'o'}, {"mltcp", required_argument, NULL, 'm'},
		{"slope", required_argument, NULL, 'a'},   {"intercept", required_argument, NULL, 'b'},
		{"socket", required_argument, NULL, 's'},  {"check", no_argument, NULL, 'c'},
		{"json", no_argument, NULL, 'j'},          {},
	};
	const struct tb_congestion_constants usual = TB_CONGESTION_CONSTANTS;
	int found;

	*options = (struct options){
		.socket = -1, .mltcp = "restricted", .slope = usual.slope, .intercept = usual.intercept};
	while ((found = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (found == 'o')
			options->objects = optarg;
		else if (found == 'm')
			options->mltcp = optarg;
		else if (found == 'a')
			options->slope = strtoul(optarg, NULL, 10);
		else if (found == 'b')
			options->intercept = strtoul(optarg, NULL, 10);
		else if (found == 's')
			options->socket = atoi(optarg);
		else if (found == 'c')
			options->check = true;
		else if (found == 'j')
			options->json = true;
		else
			return false;
	}
	return optind == argc && options->objects && options->check == (options->socket < 0) &&
	       (!strcmp(options->mltcp, "off") || !strcmp(options->mltcp, "restricted") ||
		!strcmp(options->mltcp, "everybody"));
}

int main(int argc, char **argv)
{
	struct options options;

	if (!read_options(argc, argv, &options)) {
		fprintf(stderr,
			"usage: %s --objects DIR [--mltcp off|restricted|everybody] [--slope N] [--intercept N]\n"
			"               --socket FD\n"
			"       %s --objects DIR --check [--json]\n",
			argv[0], argv[0]);
		return EXIT_USAGE;
	}
	libbpf_set_print(keep_warning);
	return options.check ? check(&options) : serve(&options);
}

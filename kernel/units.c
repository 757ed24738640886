#include "units.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "constants.h"
#include "records.h"
#include "report.h"

const struct unit units[UNIT_COUNT] = {
	{"cgroups", "cgroups", {"group"}, {}, TB_TABLE, 0},
	{"periods",
	 "periods",
	 {"period_timer", "forwarded"},
	 {"written", "charge"}, /* without the one only other quotas are noticed; the other is of a test */
	 TB_PERIODS,
	 sizeof(struct tb_period)},
	{"decisions", "memory", {"decision"}, {}, TB_OOMS, sizeof(struct tb_oom)},
	{"victims", "memory", {"victim"}, {}, TB_OOMS, sizeof(struct tb_oom)},
	{"throttles", "throttles", {"switched"}, {}, TB_THROTTLE_RING, 0},
	{"writers",
	 "writers",
	 {"max_written"},
	 {"cfs_quota_written", "quota_written", "cfs_period_written", "period_written"}, /* of version 1, two of them */
	 TB_WRITERS,
	 0},
};

static bool among(const char *const *programs, const char *name)
{
	for (int i = 0; i < MAX_PROGRAMS; i++)
		if (programs[i] && !strcmp(programs[i], name))
			return true;
	return false;
}

/* Possible CPUs may have gaps: the arrays in the kernel are as long as the highest number says. */
static int count_cpus(void)
{
	char text[256] = "";
	FILE *file = fopen("/sys/devices/system/cpu/possible", "re");
	const char *last;

	if (!file)
		return libbpf_num_possible_cpus();
	if (!fgets(text, sizeof(text), file))
		text[0] = '\0';
	fclose(file);
	last = text + strlen(text);
	while (last > text && !strchr("-,", last[-1]))
		last--;
	return atoi(last) + 1;
}

static bool name_agent(struct tb_constants *constants, __u32 pid, struct loaded *loaded)
{
	static const char path[] = "/proc/self/ns/pid";
	struct stat found;

	if (stat(path, &found))
		return fail(loaded->failure, "%s: %s", path, strerror(errno));
	constants->pidns_dev = ((__u64)major(found.st_dev) << 20) | minor(found.st_dev); /* as the kernel has it */
	constants->pidns_ino = found.st_ino;
	constants->agent_pid = pid;
	return true;
}

static bool set_constants(struct bpf_object *object, const struct request *request, const char *path,
			  struct loaded *loaded)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, ".rodata");
	size_t size = 0;
	struct tb_constants *constants = map ? (void *)bpf_map__initial_value(map, &size) : NULL;

	if (!constants || size != sizeof(*constants))
		return fail(loaded->failure, "%s is not one of Turnbuckle's object files", path);
	if (constants->version != TB_VERSION)
		return fail(loaded->failure, "%s has records of version %u, this loader has version %u", path,
			    constants->version, TB_VERSION);
	constants->cpu_count = count_cpus();
	constants->page_bytes = sysconf(_SC_PAGESIZE);
	return name_agent(constants, request->agent_pid, loaded);
}

/* What it hooks into, if that is not there; libbpf's own words for that are for its developers. */
static const char *missing_target(const struct btf *kernel, const struct bpf_program *program)
{
	static char name[128], text[256];
	const char *section = bpf_program__section_name(program);
	const char *target = strchr(section, '/') + 1;
	bool tracepoint = !strncmp(section, "tp_btf/", 7), iterator = !strncmp(section, "iter/", 5);

	snprintf(name, sizeof(name), "%s%s", tracepoint ? "btf_trace_" : iterator ? "bpf_iter_" : "", target);
	if (btf__find_by_name_kind(kernel, name, tracepoint ? BTF_KIND_TYPEDEF : BTF_KIND_FUNC) >= 0)
		return NULL;
	snprintf(text, sizeof(text), "%s %s", tracepoint ? "tracepoint" : iterator ? "iterator over" : "function", target);
	return text;
}

static bool choose_programs(const struct unit *unit, struct bpf_object *object, struct loaded *loaded)
{
	struct btf *kernel = btf__load_vmlinux_btf();
	struct bpf_program *program;
	bool good = true;

	if (!kernel)
		return fail(loaded->failure, "this kernel does not describe its types (BTF): /sys/kernel/btf/vmlinux is missing "
				    "or cannot be read; it needs CONFIG_DEBUG_INFO_BTF");
	bpf_object__for_each_program(program, object) {
		const char *name = bpf_program__name(program);
		bool needed = among(unit->programs, name);
		bool chosen = needed || among(unit->optional, name);
		const char *missing = chosen ? missing_target(kernel, program) : NULL;

		bpf_program__set_autoload(program, chosen && !missing);
		if (needed && missing)
			good = fail(loaded->failure, "this kernel has no %s", missing);
	}
	btf__free(kernel);
	return good;
}

static bool attach_table(struct bpf_program *program, const char *directory, struct loaded *loaded)
{
	union bpf_iter_link_info below = {.cgroup.order = BPF_CGROUP_ITER_DESCENDANTS_PRE};
	LIBBPF_OPTS(bpf_iter_attach_opts, options, .link_info = &below, .link_info_len = sizeof(below));
	int group = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct bpf_link *link;

	if (group < 0)
		return fail(loaded->failure, "%s: %s", directory, strerror(errno));
	below.cgroup.cgroup_fd = group;
	link = bpf_program__attach_iter(program, &options);
	if (!link)
		fail(loaded->failure, "%s: %s", directory,
		     errno == EBADF ? "not a directory of control groups" : strerror(errno));
	close(group);
	if (!link)
		return false;
	loaded->handed.numbers[loaded->count] = bpf_link__fd(link);
	return true;
}

static bool attach(struct bpf_object *object, const struct request *request, struct loaded *loaded)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, object) {
		const char *section = bpf_program__section_name(program);

		if (!bpf_program__autoload(program))
			continue;
		if (!strncmp(section, "iter/", 5)) {
			if (!attach_table(program, request->hierarchies[loaded->count], loaded))
				return false;
		} else if (!bpf_program__attach(program)) {
			return fail(loaded->failure, "cannot be attached to %s: %s", section, strerror(errno));
		}
	}
	return true;
}

static bool load(const struct unit *unit, const struct request *request, const char *path, struct bpf_object *object,
		 struct loaded *loaded)
{
	struct bpf_map *ring = bpf_object__find_map_by_name(object, "records");
	char *log = begin_log();

	if (!set_constants(object, request, path, loaded) || !choose_programs(unit, object, loaded))
		return false;
	if (ring && request->ring_bytes)
		bpf_map__set_max_entries(ring, request->ring_bytes);
	for (int i = 0; i < MAX_PROGRAMS && unit->programs[i]; i++) {
		struct bpf_program *program = bpf_object__find_program_by_name(object, unit->programs[i]);

		if (!program)
			return fail(loaded->failure, "%s has no program %s", path, unit->programs[i]);
		bpf_program__set_log_buf(program, log, LOG_BYTES);
	}
	if (bpf_object__load(object))
		return explain_refusal(errno, loaded->failure);
	return attach(object, request, loaded);
}

static bool load_once(const struct unit *unit, const struct request *request, struct loaded *loaded)
{
	char path[MAX_TEXT / 2];
	struct bpf_object *object;

	snprintf(path, sizeof(path), "%s/%s.bpf.o", request->objects, unit->file);
	if (access(path, R_OK))
		return fail(loaded->failure, "%s: %s", path, strerror(errno));
	object = bpf_object__open(path);
	if (!object)
		return fail(loaded->failure, "%s is no object file of eBPF programs", path);
	loaded->objects[loaded->count] = object;
	if (!load(unit, request, path, object, loaded)) {
		bpf_object__close(object);
		return false;
	}
	loaded->count++;
	return true;
}

static void add_maps(struct loaded *loaded)
{
	for (int i = 0; i < loaded->count; i++)
		loaded->handed.numbers[loaded->count + i] = bpf_object__find_map_fd_by_name(loaded->objects[i], "rows");
	loaded->handed.count = 2 * loaded->count;
}

static void add_map(struct loaded *loaded, const char *name)
{
	loaded->handed.numbers[0] = bpf_object__find_map_fd_by_name(loaded->objects[0], name);
	loaded->handed.count = 1;
}

void load_unit(const struct unit *unit, const struct request *request, struct loaded *loaded)
{
	int times = unit->kind == TB_TABLE ? request->hierarchy_count : 1;

	*loaded = (struct loaded){};
	for (int i = 0; i < times; i++) {
		if (load_once(unit, request, loaded))
			continue;
		while (loaded->count)
			bpf_object__close(loaded->objects[--loaded->count]);
		return;
	}
	if (unit->kind == TB_TABLE)
		add_maps(loaded);
	else if (unit->kind == TB_THROTTLE_RING)
		add_map(loaded, "bell");
	else if (unit->kind == TB_WRITERS)
		add_map(loaded, "writers");
}

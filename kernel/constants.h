/* What the loader sets in every program before it is loaded: constants to the verifier. */
#ifndef TB_CONSTANTS_H
#define TB_CONSTANTS_H

struct tb_constants {
	__u32 version;    /* TB_VERSION of the file: another one than the loader's is refused */
	__u32 cpu_count;  /* the highest number of a possible CPU, plus one */
	__u64 page_bytes;
	__u64 pidns_dev;  /* namespace of processes that the loader and the agent are in */
	__u64 pidns_ino;
	__u64 agent_pid;  /* in it */
};

#define TB_CONSTANTS {.version = TB_VERSION, .cpu_count = 1, .page_bytes = 4096}

#endif

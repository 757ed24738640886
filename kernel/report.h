/* What a loader says about programs: that they are there, or why not, in words for people. */
#ifndef TB_REPORT_H
#define TB_REPORT_H

#include <bpf/libbpf.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum { MAX_REASON = 512, LOG_BYTES = 1 << 16 };

/* Puts a sentence of at most MAX_REASON bytes into `failure`; returns false, for `return fail(...)`. */
bool fail(char *failure, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For libbpf_set_print: its words explain what nothing else does. TURNBUCKLE_KERNEL_DEBUG=1 shows them all. */
int keep_warning(enum libbpf_print_level level, const char *format, va_list arguments);

/* Before something is loaded: the verifier's words go to a log, libbpf's are those that follow. */
char *begin_log(void);

/* After it was refused with `error`, by the words since begin_log. Returns false. */
bool explain_refusal(int error, char *failure);

/* A line, or an element of a JSON list. */
void print_result(const char *name, const char *failure, bool json);

#endif

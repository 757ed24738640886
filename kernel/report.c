#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char log[LOG_BYTES];
static char warning[MAX_REASON / 2]; /* the first of libbpf's since the last load began */

bool fail(char *failure, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(failure, MAX_REASON, format, arguments);
	va_end(arguments);
	return false;
}

int keep_warning(enum libbpf_print_level level, const char *format, va_list arguments)
{
	if (getenv("TURNBUCKLE_KERNEL_DEBUG"))
		return vfprintf(stderr, format, arguments);
	if (level == LIBBPF_WARN && !*warning) {
		vsnprintf(warning, sizeof(warning), format, arguments);
		warning[strcspn(warning, "\n")] = '\0';
	}
	return 0;
}

char *begin_log(void)
{
	log[0] = warning[0] = '\0';
	return log;
}

/* The last line of the verifier's log that is not a figure; empty: it has not got that far. */
static const char *last_words(void)
{
	char *line, *last = "";

	for (line = strtok(log, "\n"); line; line = strtok(NULL, "\n"))
		if (strncmp(line, "processed ", 10) && strncmp(line, "-- ", 3))
			last = line;
	return last;
}

bool explain_refusal(int error, char *failure)
{
	const char *words = last_words();

	if (error == EPERM && geteuid())
		return fail(failure, "not permitted: needs root, or CAP_BPF and CAP_PERFMON");
	if (error == EPERM)
		return fail(failure,
			    "not permitted, not even to root: kernel lockdown, a security module, or a "
			    "container without CAP_BPF and CAP_PERFMON%s%s",
			    *words ? ": " : "", words);
	if (*words)
		return fail(failure, "the kernel's verifier refuses it: %s", words);
	return fail(failure, "the kernel refuses it: %s", *warning ? warning : strerror(error));
}

static void print_json_string(const char *text)
{
	putchar('"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			printf("\\%c", *text);
		else if ((unsigned char)*text < 0x20)
			printf("\\u%04x", *text);
		else
			putchar(*text);
	}
	putchar('"');
}

void print_result(const char *name, const char *failure, bool json)
{
	if (!json) {
		printf(*failure ? "%s failed: %s\n" : "%s ok\n", name, failure);
		return;
	}
	printf("{\"name\": ");
	print_json_string(name);
	printf(", \"ok\": %s, \"reason\": ", *failure ? "false" : "true");
	print_json_string(failure);
	putchar('}');
}

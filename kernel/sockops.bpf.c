/* Gives one congestion control, by name, to every TCP connection of a control group of version 2, active and passive ones.
 * Where that name is not there any more, the connection keeps the host's default. */
#include "vmlinux.h"

#include <bpf/bpf_helpers.h>

#include "constants.h"

#define LEVEL_TCP 6
#define OPTION_CONGESTION 13 /* TCP_CONGESTION */

char LICENSE[] SEC("license") = "GPL";

const volatile struct tb_congestion_constants constants = TB_CONGESTION_CONSTANTS;

SEC("sockops")
int choose(struct bpf_sock_ops *ops)
{
	char name[TB_CONGESTION_BYTES];

	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	for (int i = 0; i < TB_CONGESTION_BYTES; i++)
		name[i] = constants.name[i];
	bpf_setsockopt(ops, LEVEL_TCP, OPTION_CONGESTION, name, sizeof(name));
	return 1;
}

/* What several programs read of the kernel's structures. */
#ifndef TB_POINTERS_H
#define TB_POINTERS_H

#define TB_UNLIMITED (-1)

/* Lets plain loads follow a pointer that the verifier knows nothing of, at a tenth of the price of a helper's call. */
extern void *bpf_rdonly_cast(const void *pointer, __u32 type) __ksym;

#define CAST(type, pointer) ((const type *)bpf_rdonly_cast(pointer, bpf_core_type_id_kernel(type)))
#define CONTAINER(type, member, pointer) CAST(type, (const void *)(pointer) - bpf_core_field_offset(type, member))

/* An element of an array in a structure, at an index that differs between kernels: too much for one relocation. */
#define ELEMENT(type, field, base, index)                                                                              \
	({                                                                                                             \
		typeof(((type *)0)->field[0]) _value;                                                                  \
		const void *_array = (const void *)(base) + bpf_core_field_offset(type, field);                        \
		bpf_probe_read_kernel(&_value, sizeof(_value), _array + (index) * sizeof(_value));                     \
		_value;                                                                                                \
	})

/* The quota of a group that has none. */
#define RUNTIME_INF (~0ULL)

/* A CPU of the group waits for the period to end. */
static __always_inline bool is_throttled(const struct cfs_bandwidth *bandwidth)
{
	const struct list_head *waiting = &bandwidth->throttled_cfs_rq;

	return (__u64)waiting->next != (__u64)waiting;
}

/* Pages as bytes; the kernel's "no limit" is the most pages that fit into a long. */
static __always_inline __s64 bytes_of(unsigned long pages, __u64 page_bytes)
{
	return pages >= (__u64)0x7fffffffffffffff / page_bytes ? TB_UNLIMITED : (__s64)(pages * page_bytes);
}

#endif

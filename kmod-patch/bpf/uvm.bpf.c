// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Programs that watch nvidia-uvm: every fault and migration of every process,
 * which block is evicted, and how long the fault handler runs.
 *
 * Each function of the driver has one body here and two ways in: a kprobe (any
 * kernel) and fentry (where the module has BTF). The driver's structures are
 * read at the offsets in `at`, which the loader fills in from the module's
 * BTF, or from its table of driver versions where there is none.
 *
 * A GPU fault is serviced in a kernel thread, so the current process says
 * nothing; what does is the address space. spaces_born holds who made which.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "record.h"

/* The registers of a probed function's arguments, for each processor. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define ARG0(regs) ((regs)->di)
#define ARG1(regs) ((regs)->si)
#define ARG2(regs) ((regs)->dx)
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
#define ARG0(r) ((r)->regs[0])
#define ARG1(r) ((r)->regs[1])
#define ARG2(r) ((r)->regs[2])
#else
#error "no registers for this processor"
#endif

const volatile struct layout at = {};
const volatile __u32 uvm_device = 0; /* of /dev/nvidia-uvm, as the kernel writes it */
const volatile __u32 reader = 0; /* the process that loads this; it may hold copies of others' descriptors */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24); /* bytes; the loader sets it */
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNT_ALL);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Address space to process. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u32);
} spaces_born SEC(".maps");

/* Processes that the reader does not want to hear of. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, __u8);
} unwanted SEC(".maps");

/* What a function was entered with, until it returns. */
struct entered {
	__u64 begin;
	__u64 argument;
};

struct span_key {
	__u32 thread;
	__u32 kind;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct span_key);
	__type(value, struct entered);
} spans SEC(".maps");

/* Gives struct record its place in the object's type information. */
const struct record *unused_record __attribute__((unused));

static __always_inline void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&counters, &what);

	if (n)
		*n += 1;
}

static __always_inline bool get(void *to, __u32 bytes, __u64 base, __u32 offset)
{
	if (bpf_probe_read_kernel(to, bytes, (const void *)(base + offset)) == 0)
		return true;
	count(COUNT_UNREAD);
	return false;
}

/* bits reads a bit field of at most 16 bits. Little-endian, as all the driver's processors are. */
static __always_inline __u32 bits(__u64 base, __u32 bit, __u32 width)
{
	__u32 word = 0;

	if (!get(&word, sizeof(word), base, bit / 8))
		return 0;
	return word >> (bit % 8) & ((1U << (width & 31)) - 1);
}

static __always_inline __u32 process_of(__u64 space)
{
	__u32 *pid = bpf_map_lookup_elem(&spaces_born, &space);

	return pid ? *pid : 0;
}

static __always_inline bool is_wanted(__u32 pid)
{
	if (pid == 0 || !bpf_map_lookup_elem(&unwanted, &pid))
		return true;
	count(COUNT_FILTERED);
	return false;
}

/* The reader looks by itself: waking it for each record would cost more than the record. */
static __always_inline void send(const struct record *r)
{
	if (bpf_ringbuf_output(&ring, (void *)r, sizeof(*r), BPF_RB_NO_WAKEUP) == 0)
		count(COUNT_SENT);
	else
		count(COUNT_LOST);
}

/*
 * space_of reads the address space that an event belongs to. For a GPU fault it
 * stands in the fault too; where the two differ, the layout is not that of this
 * kernel's build (a lock of another size lies before it), and the fault's is right.
 */
static __always_inline __u64 space_of(__u64 events, __u64 faulted)
{
	__u64 space = 0;

	if (!get(&space, sizeof(space), events, at.events_space))
		return faulted;
	if (faulted && space != faulted) {
		count(COUNT_MISMATCH);
		return faulted;
	}
	return space;
}

static __always_inline void on_fault(struct record *r, __u64 events, __u64 data)
{
	__u32 processor = 0;

	if (!get(&processor, sizeof(processor), data, at.fault_processor))
		return;
	r->target = processor;
	if (processor == 0) {
		__u8 is_write = 0;

		r->kind = KIND_CPU_FAULT;
		r->space = space_of(events, 0);
		if (!get(&r->address, sizeof(r->address), data, at.cpu_address) ||
		    !get(&is_write, sizeof(is_write), data, at.cpu_write))
			return;
		r->access = is_write;
	} else {
		__u64 entry = 0, faulted = 0;

		r->kind = KIND_GPU_FAULT;
		if (!get(&entry, sizeof(entry), data, at.fault_entry) ||
		    !get(&r->batch, sizeof(r->batch), data, at.fault_batch) ||
		    !get(&r->duplicate, sizeof(r->duplicate), data, at.fault_duplicate) ||
		    !get(&r->address, sizeof(r->address), entry, at.entry_address) ||
		    !get(&r->end, sizeof(r->end), entry, at.entry_time) ||
		    !get(&faulted, sizeof(faulted), entry, at.entry_space))
			return;
		r->space = space_of(events, faulted);
		r->client = bits(entry, at.entry_client_bit, at.entry_client_bits);
		r->fault_type = bits(entry, at.entry_type_bit, at.entry_type_bits);
		r->access = bits(entry, at.entry_access_bit, at.entry_access_bits);
	}
	r->pid = process_of(r->space);
	if (is_wanted(r->pid))
		send(r);
}

static __always_inline void on_migration(struct record *r, __u64 events, __u64 data)
{
	__u32 target = 0, source = 0, cause = 0;

	r->kind = KIND_MIGRATION;
	r->space = space_of(events, 0);
	r->pid = process_of(r->space);
	if (!is_wanted(r->pid))
		return;
	if (!get(&target, sizeof(target), data, at.migration_target) ||
	    !get(&source, sizeof(source), data, at.migration_source) ||
	    !get(&cause, sizeof(cause), data, at.migration_cause) ||
	    !get(&r->address, sizeof(r->address), data, at.migration_address) ||
	    !get(&r->bytes, sizeof(r->bytes), data, at.migration_bytes))
		return;
	r->target = target;
	r->source = source;
	r->cause = cause;
	send(r);
}

/* uvm_perf_event_notify(events, event, data): the same prototype in drivers 535 to 595. */
static __always_inline int on_notify(__u64 events, __u32 event, __u64 data)
{
	struct record r = { .begin = bpf_ktime_get_ns() };

	if (event == 6)
		on_fault(&r, events, data);
	else if (event == 7)
		on_migration(&r, events, data);
	return 0;
}

static __always_inline int enter(__u32 kind, __u64 argument)
{
	struct span_key key = { .thread = bpf_get_current_pid_tgid(), .kind = kind };
	struct entered e = { .begin = bpf_ktime_get_ns(), .argument = argument };

	bpf_map_update_elem(&spans, &key, &e, BPF_ANY);
	return 0;
}

static __always_inline bool leave(__u32 kind, struct entered *e)
{
	struct span_key key = { .thread = bpf_get_current_pid_tgid(), .kind = kind };
	struct entered *found = bpf_map_lookup_elem(&spans, &key);

	if (!found)
		return false; /* entered before the programs were attached */
	*e = *found;
	bpf_map_delete_elem(&spans, &key);
	return true;
}

/* uvm_va_block_evict_chunks(block, ...) */
static __always_inline int on_evicted(void)
{
	struct record r = { .kind = KIND_EVICTION };
	struct entered e;
	__u64 last = 0;

	if (!leave(KIND_EVICTION, &e))
		return 0;
	r.begin = e.begin;
	r.end = bpf_ktime_get_ns();
	/* The block lies behind locks, whose size a kernel's options change: what is not
	 * a range of whole pages within 2 MiB is not said. */
	if (get(&r.address, sizeof(r.address), e.argument, at.block_start) &&
	    get(&last, sizeof(last), e.argument, at.block_end))
		r.bytes = last + 1 - r.address;
	if (r.address % 4096 || r.bytes % 4096 || r.bytes == 0 || r.bytes > 2 << 20) {
		count(COUNT_MISMATCH);
		r.address = r.bytes = 0;
	}
	send(&r);
	return 0;
}

/* uvm_parent_gpu_service_replayable_faults(gpu): one run, up to 20 batches. */
static __always_inline int on_serviced(void)
{
	struct record r = { .kind = KIND_SERVICE };
	struct entered e;

	if (!leave(KIND_SERVICE, &e))
		return 0;
	r.begin = e.begin;
	r.end = bpf_ktime_get_ns();
	send(&r);
	return 0;
}

static __always_inline void born(__u64 space, __u32 pid)
{
	struct record r = { .kind = KIND_SPACE_BORN, .begin = bpf_ktime_get_ns(), .space = space, .pid = pid };

	bpf_map_update_elem(&spaces_born, &space, &pid, BPF_ANY);
	send(&r);
}

/* uvm_va_space_create(mapping, **space, flags), in the process that opens the device. */
static __always_inline int on_created(void)
{
	struct entered e;
	__u64 space = 0;

	if (leave(KIND_SPACE_BORN, &e) && get(&space, sizeof(space), e.argument, 0) && space)
		born(space, bpf_get_current_pid_tgid() >> 32);
	return 0;
}

/* uvm_va_space_destroy(space): its address may be given out again. */
static __always_inline int on_destroyed(__u64 space)
{
	struct record r = { .kind = KIND_SPACE_GONE, .begin = bpf_ktime_get_ns(), .space = space };

	r.pid = process_of(space);
	bpf_map_delete_elem(&spaces_born, &space);
	send(&r);
	return 0;
}

#define PROBE(name, how) SEC(how) int name
#define ENTRY(name, symbol, ...)                                                                   \
	PROBE(probe_##name, "kprobe/" symbol)(struct pt_regs *regs)                                \
	{                                                                                          \
		__u64 a = ARG0(regs), b = ARG1(regs), c = ARG2(regs);                              \
		(void)a, (void)b, (void)c;                                                         \
		return __VA_ARGS__;                                                                \
	}                                                                                          \
	PROBE(trace_##name, "fentry/" symbol)(__u64 *args)                                         \
	{                                                                                          \
		__u64 a = args[0], b = ENTRY_SECOND, c = ENTRY_THIRD;                              \
		(void)a, (void)b, (void)c;                                                         \
		return __VA_ARGS__;                                                                \
	}
#define EXIT(name, symbol, ...)                                                                    \
	PROBE(probe_##name, "kretprobe/" symbol)(struct pt_regs *regs) { return __VA_ARGS__; }     \
	PROBE(trace_##name, "fexit/" symbol)(__u64 *args) { return __VA_ARGS__; }

/* The verifier lets fentry read only the arguments that a function has. */
#define ENTRY_SECOND args[1]
#define ENTRY_THIRD args[2]
ENTRY(notify, "uvm_perf_event_notify", on_notify(a, b, c))
ENTRY(evict, "uvm_va_block_evict_chunks", enter(KIND_EVICTION, a))
#undef ENTRY_SECOND
#undef ENTRY_THIRD
#define ENTRY_SECOND 0
#define ENTRY_THIRD 0
ENTRY(destroy, "uvm_va_space_destroy", on_destroyed(a))
ENTRY(service, "uvm_parent_gpu_service_replayable_faults", enter(KIND_SERVICE, 0))
/* A pointer to a pointer is no argument that the verifier lets fentry read in place. */
PROBE(probe_create, "kprobe/uvm_va_space_create")(struct pt_regs *regs)
{
	return enter(KIND_SPACE_BORN, ARG1(regs));
}
PROBE(trace_create, "fentry/uvm_va_space_create")(__u64 *args)
{
	__u64 out = 0;

	return bpf_get_func_arg(args, 1, &out) == 0 ? enter(KIND_SPACE_BORN, out) : 0;
}
EXIT(created, "uvm_va_space_create", on_created())
EXIT(evicted, "uvm_va_block_evict_chunks", on_evicted())
EXIT(serviced, "uvm_parent_gpu_service_replayable_faults", on_serviced())

/* Address spaces that were there before: whoever holds the device open. CO-RE, on the kernel's BTF. */
#define KERNEL_TYPE __attribute__((preserve_access_index))
struct task_struct {
	int tgid;
} KERNEL_TYPE;
struct inode {
	__u32 i_rdev;
} KERNEL_TYPE;
struct file {
	struct inode *f_inode;
	void *private_data;
} KERNEL_TYPE;
struct bpf_iter__task_file {
	void *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
} KERNEL_TYPE;

SEC("iter/task_file") int find_spaces(struct bpf_iter__task_file *it)
{
	struct task_struct *task = it->task;
	struct file *file = it->file;
	__u64 tagged;

	if (!task || !file || BPF_CORE_READ(file, f_inode, i_rdev) != uvm_device)
		return 0;
	/* The low bits say what the descriptor is: 2 is an address space. */
	tagged = (__u64)BPF_CORE_READ(file, private_data);
	if ((tagged & 3) != 2 || BPF_CORE_READ(task, tgid) == reader)
		return 0;
	/* Processes come in the order of their numbers: a child that has inherited it comes later. */
	tagged &= ~7ULL;
	if (!process_of(tagged))
		born(tagged, BPF_CORE_READ(task, tgid));
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";

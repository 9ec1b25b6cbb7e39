/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The structures of nvidia-uvm that the programs read, as far as they read them:
 * named members where the driver has them, filling between. DRIVER says of which
 * branch (535, 550, 560, 565 or 580); LOCK_BYTES is the size of the lock that
 * lies before the address space, which the kernel's options change.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <linux/list.h>
#include <linux/types.h>

#ifndef DRIVER
#define DRIVER 580
#endif
#ifndef LOCK_BYTES
#define LOCK_BYTES 40
#endif

typedef struct { u32 val; } uvm_processor_id_t;

typedef struct uvm_va_space_struct uvm_va_space_t;

typedef struct {
	char lock[LOCK_BYTES];
	struct list_head event_callbacks[9];
	uvm_va_space_t *va_space;
} uvm_perf_va_space_events_t;

struct uvm_va_space_struct {
	u64 id;
	uvm_perf_va_space_events_t perf_events;
};

typedef struct {
	char head[LOCK_BYTES + 8];
	u64 start;
	u64 end; /* inclusive */
} uvm_va_block_t;

typedef struct {
	u64 fault_address;
	u64 timestamp;
	u64 instance_ptr[2];
	struct {
		u32 client_type : 2;
		u32 engine : 14;
		u32 client_id : 16;
		u16 engine_id;
		u16 utlb_id;
		u8 gpc_id;
		u8 ve_id;
	} fault_source;
#if DRIVER >= 560
	u32 fault_type : 6;
#else
	u32 fault_type : 5;
#endif
	u32 fault_access_type : 4;
	uvm_va_space_t *va_space;
} uvm_fault_buffer_entry_t;

typedef union {
	struct {
#if DRIVER < 580
		uvm_va_space_t *space;
#endif
		uvm_va_block_t *block;
		uvm_processor_id_t proc_id;
		uvm_processor_id_t preferred_location;
		union {
			struct {
				uvm_fault_buffer_entry_t *buffer_entry;
				u32 batch_id;
				bool is_duplicate;
			} gpu;
			struct {
				u64 fault_va;
#if DRIVER >= 565
				u32 cpu_num;
#endif
				bool is_write;
				u64 pc;
			} cpu;
		};
	} fault;
	struct {
		void *push;
		uvm_va_block_t *block;
		uvm_processor_id_t dst;
		uvm_processor_id_t src;
#if DRIVER >= 550
		s16 dst_nid;
		s16 src_nid;
#endif
		u64 address;
		u64 bytes;
		u32 transfer_mode;
#if DRIVER >= 580
		u32 access_counters_buffer_index;
#endif
		u32 cause;
	} migration;
} uvm_perf_event_data_t;

/* What a process asks for, by writing to the device. */
struct command {
	u32 kind;
	u32 access;
	u64 address;
	u64 bytes;
	u32 batch;
	u32 cause;
	u32 source;
	u32 target;
	u32 client;
	u32 duplicate;
};

enum { COMMAND_GPU_FAULT = 1, COMMAND_CPU_FAULT = 2, COMMAND_MIGRATION = 3, COMMAND_EVICTION = 4 };

#endif

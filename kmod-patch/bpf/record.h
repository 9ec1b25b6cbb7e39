/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the programs and the Go loader (faults/bpf) agree on: the records of the
 * ring, the layout of the driver's structures, the counters.
 */
#ifndef PENSTOCK_RECORD_H
#define PENSTOCK_RECORD_H

enum kind {
	KIND_GPU_FAULT = 1,
	KIND_CPU_FAULT = 2,
	KIND_MIGRATION = 3,
	KIND_EVICTION = 4,   /* one block was evicted: begin, end */
	KIND_SERVICE = 5,    /* one run of the fault handler: begin, end */
	KIND_SPACE_BORN = 6, /* an address space and the process that made it */
	KIND_SPACE_GONE = 7,
};

/* Times are CLOCK_MONOTONIC in nanoseconds, numbers the driver's own. */
struct record {
	__u64 begin;
	__u64 end;   /* of a span; of a GPU fault the GPU's clock */
	__u64 address;
	__u64 bytes;
	__u64 space; /* the driver's address space; 0 when it cannot be told */
	__u32 pid;   /* that made the space; 0 when that was not seen */
	__u32 batch;
	__u16 source; /* processors */
	__u16 target;
	__u8 kind;
	__u8 access;
	__u8 cause;
	__u8 fault_type;
	__u8 client;
	__u8 duplicate;
	__u8 reserved[6];
};

/* Where things are in the driver's structures: bytes, and bits for bit fields. */
struct layout {
	__u32 events_space; /* uvm_perf_va_space_events_t */
	__u32 fault_processor; /* uvm_perf_event_data_t */
	__u32 fault_entry;
	__u32 fault_batch;
	__u32 fault_duplicate;
	__u32 cpu_address;
	__u32 cpu_write;
	__u32 migration_target;
	__u32 migration_source;
	__u32 migration_address;
	__u32 migration_bytes;
	__u32 migration_cause;
	__u32 entry_address; /* uvm_fault_buffer_entry_t */
	__u32 entry_time;
	__u32 entry_space;
	__u32 entry_client_bit;
	__u32 entry_client_bits;
	__u32 entry_type_bit;
	__u32 entry_type_bits;
	__u32 entry_access_bit;
	__u32 entry_access_bits;
	__u32 block_start; /* uvm_va_block_t */
	__u32 block_end;
};

/* Counters, summed over processors by the reader. */
enum counter {
	COUNT_SENT,     /* put into the ring */
	COUNT_LOST,     /* found the ring full */
	COUNT_FILTERED, /* of processes that are not asked for */
	COUNT_UNREAD,   /* the driver's memory could not be read */
	COUNT_MISMATCH, /* the layout contradicts itself: see space_of in uvm.bpf.c */
	COUNT_ALL,
};

#endif

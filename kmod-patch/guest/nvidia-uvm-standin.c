// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A module that looks to a probe like nvidia-uvm: the same names, prototypes and
 * event data, and nothing behind them. Whoever opens /dev/nvidia-uvm makes an
 * address space; whoever writes commands to it raises faults, migrations and
 * evictions. As in the driver, GPU faults are serviced in a kernel thread.
 */
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "standin.h"

#define STRING2(x) #x
#define STRING(x) STRING2(x)

/* A function of a single file may be cloned for its callers; in the driver callers are elsewhere. */
#define watched noinline __attribute__((noipa))

enum { EVENT_FAULT = 6, EVENT_MIGRATION = 7 };

void uvm_perf_event_notify(uvm_perf_va_space_events_t *events, int event, uvm_perf_event_data_t *data);
int uvm_va_space_create(struct address_space *mapping, uvm_va_space_t **out, u64 flags);
void uvm_va_space_destroy(uvm_va_space_t *space);
int uvm_va_block_evict_chunks(uvm_va_block_t *block, void *gpu, void *chunk, void *tracker);
#if DRIVER >= 560
#define service_faults uvm_parent_gpu_service_replayable_faults
#else
#define service_faults uvm_gpu_service_replayable_faults
#endif
void service_faults(void *gpu);

watched void uvm_perf_event_notify(uvm_perf_va_space_events_t *events, int event, uvm_perf_event_data_t *data)
{
	barrier_data(data);
}

watched int uvm_va_space_create(struct address_space *mapping, uvm_va_space_t **out, u64 flags)
{
	uvm_va_space_t *space = kzalloc(sizeof(*space), GFP_KERNEL);

	if (!space)
		return -ENOMEM;
	space->perf_events.va_space = space;
	*out = space;
	return 0;
}

watched void uvm_va_space_destroy(uvm_va_space_t *space)
{
	kfree(space);
}

/* The commands of one write, for the kernel thread. */
static struct {
	uvm_va_space_t *space;
	const struct command *commands;
	size_t count;
} batch;

static void notify_gpu_fault(uvm_va_space_t *space, const struct command *c)
{
	uvm_fault_buffer_entry_t entry = {
		.fault_address = c->address,
		.timestamp = ktime_get_ns(),
		.fault_source = { .client_type = c->client, .engine = 0x3fff, .client_id = 0xffff },
		.fault_type = 2,
		.fault_access_type = c->access,
		.va_space = space,
	};
	uvm_perf_event_data_t data = { .fault = { .proc_id = { c->target }, .preferred_location = { 0xffff } } };

	data.fault.gpu.buffer_entry = &entry;
	data.fault.gpu.batch_id = c->batch;
	data.fault.gpu.is_duplicate = c->duplicate;
	uvm_perf_event_notify(&space->perf_events, EVENT_FAULT, &data);
}

watched void service_faults(void *gpu)
{
	size_t i;

	for (i = 0; i < batch.count; i++)
		if (batch.commands[i].kind == COMMAND_GPU_FAULT)
			notify_gpu_fault(batch.space, &batch.commands[i]);
}

static void notify_migration(uvm_va_space_t *space, const struct command *c)
{
	uvm_perf_event_data_t data = { .migration = {
		.dst = { c->target }, .src = { c->source }, .address = c->address, .bytes = c->bytes, .cause = c->cause,
	} };

	uvm_perf_event_notify(&space->perf_events, EVENT_MIGRATION, &data);
}

static void notify_cpu_fault(uvm_va_space_t *space, const struct command *c)
{
	uvm_perf_event_data_t data = { .fault = { .preferred_location = { 0xffff } } };

	data.fault.cpu.fault_va = c->address;
	data.fault.cpu.is_write = c->access;
	uvm_perf_event_notify(&space->perf_events, EVENT_FAULT, &data);
}

/* The migration is in the middle of the eviction, so it is passed along. */
struct eviction {
	uvm_va_space_t *space;
	const struct command *command;
};

watched int uvm_va_block_evict_chunks(uvm_va_block_t *block, void *gpu, void *chunk, void *tracker)
{
	struct eviction *e = tracker;

	notify_migration(e->space, e->command);
	return 0;
}

static void evict(uvm_va_space_t *space, const struct command *c)
{
	uvm_va_block_t block = { .start = c->address, .end = c->address + c->bytes - 1 };
	struct eviction e = { space, c };

	uvm_va_block_evict_chunks(&block, NULL, NULL, &e);
}

/* The bottom half: one thread for all, as for one GPU. */
static DEFINE_MUTEX(bottom_half_lock);
static DECLARE_WAIT_QUEUE_HEAD(bottom_half_wait);
static DECLARE_COMPLETION(bottom_half_done);
static struct task_struct *bottom_half;
static bool bottom_half_due;

static int bottom_half_run(void *unused)
{
	while (!kthread_should_stop()) {
		wait_event_interruptible(bottom_half_wait, bottom_half_due || kthread_should_stop());
		if (!bottom_half_due)
			continue;
		bottom_half_due = false;
		service_faults(NULL);
		complete(&bottom_half_done);
	}
	return 0;
}

static int standin_open(struct inode *inode, struct file *file)
{
	uvm_va_space_t *space;
	int err = uvm_va_space_create(file->f_mapping, &space, 0);

	if (!err)
		file->private_data = (void *)((unsigned long)space | 2);
	return err;
}

static uvm_va_space_t *space_of(struct file *file)
{
	return (void *)((unsigned long)file->private_data & ~7UL);
}

static int standin_release(struct inode *inode, struct file *file)
{
	uvm_va_space_destroy(space_of(file));
	return 0;
}

static ssize_t standin_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	size_t i, count = bytes / sizeof(struct command);
	struct command *commands;

	if (count == 0 || count > 4096 || bytes % sizeof(struct command))
		return -EINVAL;
	commands = memdup_user(from, bytes);
	if (IS_ERR(commands))
		return PTR_ERR(commands);

	mutex_lock(&bottom_half_lock);
	batch.space = space_of(file);
	batch.commands = commands;
	batch.count = count;
	bottom_half_due = true;
	wake_up(&bottom_half_wait);
	wait_for_completion(&bottom_half_done);
	mutex_unlock(&bottom_half_lock);

	for (i = 0; i < count; i++) {
		if (commands[i].kind == COMMAND_CPU_FAULT)
			notify_cpu_fault(space_of(file), &commands[i]);
		else if (commands[i].kind == COMMAND_MIGRATION)
			notify_migration(space_of(file), &commands[i]);
		else if (commands[i].kind == COMMAND_EVICTION)
			evict(space_of(file), &commands[i]);
	}
	kfree(commands);
	return bytes;
}

static const struct file_operations standin_operations = {
	.owner = THIS_MODULE,
	.open = standin_open,
	.release = standin_release,
	.write = standin_write,
};

static int major;

static int __init standin_init(void)
{
	major = register_chrdev(0, "nvidia-uvm", &standin_operations);
	if (major < 0)
		return major;
	bottom_half = kthread_run(bottom_half_run, NULL, "UVM GPU1 BH");
	if (IS_ERR(bottom_half)) {
		unregister_chrdev(major, "nvidia-uvm");
		return PTR_ERR(bottom_half);
	}
	return 0;
}

static void __exit standin_exit(void)
{
	kthread_stop(bottom_half);
	unregister_chrdev(major, "nvidia-uvm");
}

module_init(standin_init);
module_exit(standin_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Penstock's stand-in for nvidia-uvm, for tests");
MODULE_VERSION(STRING(DRIVER) ".1");

// siblings.c - which processors slow each other down, as hardware threads of one core do, whether
// or not the machine says that they are: virtual machines often do not.
//
// Build:  gcc -O2 -pthread -o siblings siblings.c
// Run:    ./siblings            a line of JSON for each pair that does, and one with a processor of each core
//
// One thread counts on a processor for a few milliseconds, alone and while another thread counts on another.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 256 };
static const double SPAN = 3e-3; // seconds that are counted
static const double SHARED = 0.8; // of the speed alone: less is a shared core

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void run_on(int cpu) {
	cpu_set_t s;
	CPU_ZERO(&s);
	CPU_SET(cpu, &s);
	if (sched_setaffinity(0, sizeof s, &s)) {
		perror("sched_setaffinity");
		exit(1);
	}
}

// work keeps several units of a core busy.
static long work(double until) {
	unsigned a = 1, b = 2, c = 3, d = 4;
	long n = 0;
	do {
		for (int i = 0; i < 1000; i++) {
			a = a * 1664525 + 1013904223, b ^= b << 13, b ^= b >> 17, c += a ^ b, d = d * 22695477 + c;
			__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
		}
		n++;
	} while (now() < until);
	return n;
}

static atomic_int started, stop;

static void *beside(void *cpu) {
	run_on(*(int *)cpu);
	started = 1;
	while (!stop) work(now() + 1e-4);
	return NULL;
}

static double speed(int other) {
	pthread_t t;
	started = stop = 0;
	if (other >= 0) {
		pthread_create(&t, NULL, beside, &other);
		while (!started) sched_yield();
	}
	double best = 0;
	for (int i = 0; i < 3; i++) { // what disturbs makes it slower, never faster
		double from = now();
		double s = work(from + SPAN) / (now() - from);
		if (s > best) best = s;
	}
	stop = 1;
	if (other >= 0) pthread_join(t, NULL);
	return best;
}

int main(void) {
	cpu_set_t allowed;
	if (sched_getaffinity(0, sizeof allowed, &allowed)) return 1;
	int cpus[MOST], n = 0, hidden[MOST] = {0};
	for (int i = 0; i < MOST && i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &allowed)) cpus[n++] = i;
	for (int i = 0; i < n; i++) {
		if (hidden[i]) continue;
		run_on(cpus[i]);
		speed(-1); // warms up
		for (int j = i + 1; j < n; j++) {
			double alone = speed(-1), ratio = speed(cpus[j]) / alone;
			if (ratio > SHARED) continue;
			hidden[j] = 1;
			printf("{\"cpus\": [%d, %d], \"speed_beside\": %.2f}\n", cpus[i], cpus[j], ratio);
		}
	}
	printf("{\"one_of_each_core\": \"");
	for (int i = 0, first = 1; i < n; i++)
		if (!hidden[i]) printf(first ? "%d" : ",%d", cpus[i]), first = 0;
	printf("\"}\n");
	return 0;
}

// job_beside.cu - the library of job_beside.py, which builds it: starts and ends what goes on beside a job.

#include "beside.h"

static Beside *beside;

extern "C" const char *beside_name(int kind) { return kind < int(sizeof KINDS / sizeof *KINDS) ? KINDS[kind].name : nullptr; }

extern "C" void beside_start(int kind) {
	if (!beside) {
		open_device();
		beside = new Beside;
	}
	beside->start(KINDS[kind]);
}

extern "C" void beside_end(double *in_gb_per_s, double *out_gb_per_s) {
	beside->end();
	*in_gb_per_s = beside->in_gb_per_s, *out_gb_per_s = beside->out_gb_per_s;
}

package hostmem

import (
	"testing"
	"testing/fstest"
)

func files(kv ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = &fstest.MapFile{Data: []byte(kv[i+1])}
	}
	return m
}

const meminfo = "MemTotal:       2000000 kB\nMemFree:  1 kB\nMemAvailable:    1000000 kB\n"

func TestRead(t *testing.T) {
	const free = 1000000 << 10
	tests := []struct {
		name  string
		files fstest.MapFS
		want  int64
		by    string
	}{
		{"no groups", files("proc/meminfo", meminfo), free, "free memory"},
		{"version 2", files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/job\n",
			"sys/fs/cgroup/job/memory.max", "500000\n", "sys/fs/cgroup/job/memory.current", "200000\n",
			"sys/fs/cgroup/job/memory.stat", "anon 7\ninactive_file 50000\n"), 350000, "the memory limit of control group /job"},
		{"no limit", files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/job\n",
			"sys/fs/cgroup/job/memory.max", "max\n", "sys/fs/cgroup/job/memory.current", "200000\n"), free, "free memory"},
		{"an ancestor's", files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/pods/job/main\n",
			"sys/fs/cgroup/pods/memory.max", "300000\n", "sys/fs/cgroup/pods/memory.current", "100000\n",
			"sys/fs/cgroup/pods/job/main/memory.max", "900000\n", "sys/fs/cgroup/pods/job/main/memory.current", "0\n"), 200000, "the memory limit of control group /pods"},
		{"a container sees its own group as the root", files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/\n",
			"sys/fs/cgroup/memory.max", "300000\n", "sys/fs/cgroup/memory.current", "100000\n"), 200000, "the memory limit of control group /"},
		{"version 1, where the path is that of the machine", files("proc/meminfo", meminfo, "proc/self/cgroup", "5:cpu,memory:/docker/abc\n4:cpuset:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes", "700000\n", "sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n",
			"sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 60000\n"), 660000, "the memory limit of control group /"},
		{"version 1 without a limit", files("proc/meminfo", meminfo, "proc/self/cgroup", "4:memory:/a\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n", "sys/fs/cgroup/memory/a/memory.usage_in_bytes", "100000\n"), free, "free memory"},
		{"over its limit", files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/job\n",
			"sys/fs/cgroup/job/memory.max", "5\n", "sys/fs/cgroup/job/memory.current", "10\n"), 0, "the memory limit of control group /job"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := read(tt.files)
			if err != nil || m.TotalBytes != 2000000<<10 || m.AvailableBytes != tt.want || m.LimitedBy != tt.by {
				t.Errorf("%+v, %v; want %d by %s", m, err, tt.want, tt.by)
			}
		})
	}
	for _, bad := range []fstest.MapFS{files(), files("proc/meminfo", "MemTotal: 1 kB"), files("proc/meminfo", "MemAvailable: 1 kB"),
		files("proc/meminfo", "MemTotal: 1 kB\nMemAvailable: -1 kB"), files("proc/meminfo", "MemTotal: x kB\nMemAvailable: 1 kB"),
		files("proc/meminfo", "MemTotal: 1 kB\nMemAvailable: 9223372036854775807 kB"), files("proc/meminfo", "MemTotal: 9223372036854775807 kB\nMemAvailable: 1 kB")} {
		if m, err := read(bad); err == nil {
			t.Errorf("%v gives %+v", bad, m)
		}
	}
}

func TestThisMachine(t *testing.T) {
	m, err := Available()
	if err != nil {
		t.Skip(err)
	}
	if m.AvailableBytes < 1<<20 {
		t.Errorf("%+v while this test runs", m)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(meminfo, "0::/job\n4:memory:/a/b\n", "500000\n", "3", "inactive_file 50000\n")
	f.Add("MemAvailable: 1 kB", "0::/../../..\n:::\n", "max", "9223372036854775807", "total_inactive_file -1")
	f.Fuzz(func(t *testing.T, info, group, limit, used, stat string) {
		const a, b = "sys/fs/cgroup/", "sys/fs/cgroup/memory/"
		m, err := read(files("proc/meminfo", info, "proc/self/cgroup", group, a+"memory.max", limit, a+"memory.current", used, a+"memory.stat", stat,
			b+"memory.limit_in_bytes", limit, b+"memory.usage_in_bytes", used, b+"memory.stat", stat))
		if err == nil && (m.AvailableBytes < 0 || m.LimitedBy == "") {
			t.Errorf("%+v", m)
		}
	})
}

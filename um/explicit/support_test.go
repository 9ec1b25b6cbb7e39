package explicit

import (
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

func TestObstacles(t *testing.T) {
	able := func() Place {
		return Place{
			Capabilities: cuda.Capabilities{VirtualMemory: true, StreamMemOps: true, FunctionParamInfo: true, Kernels: true},
			HostBytes:    LeastHostBytes, Hooked: true, Policy: "penstock",
		}
	}
	if o := Obstacles(able()); len(o) != 0 {
		t.Fatalf("nothing is missing, and yet: %v", o[0])
	}
	for _, test := range []struct {
		need   Need
		change func(*Place)
		says   string
	}{
		{NeedVirtualMemory, func(p *Place) { p.Capabilities.VirtualMemory = false }, "cuMemCreate"},
		{NeedStreamMemOps, func(p *Place) { p.Capabilities.StreamMemOps = false }, "stream memory operations"},
		{NeedParameterInfo, func(p *Place) { p.Capabilities.FunctionParamInfo = false }, "driver 550"},
		{NeedDeviceCode, func(p *Place) { p.Capabilities.Kernels = false }, "device code"},
		{NeedHostMemory, func(p *Place) { p.HostBytes = 300 << 20 }, "only 300 MiB"},
		{NeedHook, func(p *Place) { p.Hooked = false }, "penstock run"},
		{NeedEveryRoute, func(p *Place) { p.MissedRoutes = []string{"dlsym", "the runtime"} }, "dlsym and the runtime"},
		{NeedPolicy, func(p *Place) { p.Policy = "deepum" }, "--policy penstock"},
	} {
		p := able()
		test.change(&p)
		all := Obstacles(p)
		if len(all) != 1 || all[0].Need != test.need || !strings.Contains(all[0].Error(), test.says) || strings.Contains(all[0].Error(), "\n") {
			t.Errorf("%s: %v", test.need, all)
		}
	}
	if all := Obstacles(Place{}); len(all) < 6 || all[0].Need != NeedVirtualMemory {
		t.Errorf("where nothing is there: %v", all)
	}
}

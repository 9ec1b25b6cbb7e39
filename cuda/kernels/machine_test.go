package kernels

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// machine runs PTX on the CPU, as much of it as ptx.go uses: so what the text
// says is tested where there is no card. A thread runs until it meets a barrier.
type machine struct {
	code   []instruction
	labels map[string]int
	params []string
	shared map[string]int // offset of each variable
	size   int            // of shared memory
}

type instruction struct {
	predicate string
	op        string
	args      []string
}

// parse reads the kernel of that name.
func parse(t *testing.T, text, name string) *machine {
	t.Helper()
	_, text, ok := strings.Cut(text, ".entry "+name+"(")
	if !ok {
		t.Fatalf("no kernel %s", name)
	}
	head, body, _ := strings.Cut(text, ")")
	m := &machine{labels: map[string]int{}, shared: map[string]int{}}
	for _, p := range strings.Split(head, ",") {
		m.params = append(m.params, strings.Fields(p)[2])
	}
	body, _, _ = strings.Cut(body, "\n}")
	for _, line := range strings.Split(body, "\n") {
		line, _, _ = strings.Cut(line, "//")
		line = strings.TrimSpace(line)
		if l, ok := strings.CutSuffix(line, ":"); ok {
			m.labels[l] = len(m.code)
			continue
		}
		line = strings.TrimSuffix(line, ";")
		switch f := strings.Fields(line); {
		case line == "" || line == "{" || strings.HasPrefix(line, ".reg"):
		case strings.HasPrefix(line, ".shared"):
			v, n, _ := strings.Cut(strings.TrimSuffix(f[len(f)-1], "]"), "[")
			bytes, err := strconv.Atoi(n)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			m.shared[v] = m.size
			m.size += bytes
		default:
			var i instruction
			if strings.HasPrefix(line, "@") {
				i.predicate = f[0][1:]
				line = strings.TrimSpace(line[len(f[0]):])
			}
			op, args, _ := strings.Cut(line, " ")
			i.op = op
			args = strings.NewReplacer("{", "", "}", "").Replace(args)
			for _, a := range strings.Split(args, ",") {
				i.args = append(i.args, strings.TrimSpace(a))
			}
			m.code = append(m.code, i)
		}
	}
	return m
}

type thread struct {
	at   int
	over bool
	regs map[string]uint64
}

// run launches the kernel.
func (m *machine) run(t *testing.T, blocks, threads int, args ...uint64) {
	t.Helper()
	if len(args) != len(m.params) {
		t.Fatalf("%d arguments for %d parameters", len(args), len(m.params))
	}
	for b := range blocks {
		shared := make([]uint64, m.size/8)
		all := make([]*thread, threads)
		for i := range all {
			all[i] = &thread{regs: map[string]uint64{"%tid.x": uint64(i), "%ctaid.x": uint64(b), "%ntid.x": uint64(threads), "%nctaid.x": uint64(blocks)}}
			for k, p := range m.params {
				all[i].regs["["+p+"]"] = args[k]
			}
		}
		for running := true; running; {
			running = false
			for _, th := range all {
				for !th.over {
					if m.step(t, th, shared) {
						running = true
						break
					}
				}
			}
		}
	}
}

// pointer is the memory that an address expression such as [at] or [i+8] names.
func (m *machine) pointer(th *thread, expression string, shared []uint64, op string) unsafe.Pointer {
	name, offset, _ := strings.Cut(strings.Trim(expression, "[]"), "+")
	n, _ := strconv.Atoi(offset)
	p := uintptr(th.regs[name]) + uintptr(n)
	if strings.Contains(op, ".shared") {
		return unsafe.Pointer(&shared[p/8])
	}
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}

// step runs one instruction and says whether it was a barrier.
func (m *machine) step(t *testing.T, th *thread, shared []uint64) (barrier bool) {
	i := m.code[th.at]
	th.at++
	if i.predicate != "" && th.regs[i.predicate] == 0 {
		return false
	}
	value := func(k int) uint64 {
		a := i.args[k]
		if v, ok := th.regs[a]; ok {
			return v
		}
		if v, ok := m.shared[a]; ok {
			return uint64(v)
		}
		v, err := strconv.ParseUint(a, 0, 64)
		if err != nil {
			t.Fatalf("%s %v: %s was never set", i.op, i.args, a)
		}
		return v
	}
	set := func(v uint64) {
		if strings.HasSuffix(i.op, "32") && !strings.Contains(i.op, "wide") {
			v = uint64(uint32(v))
		}
		th.regs[i.args[0]] = v
	}
	truth := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	switch part := strings.Split(i.op, "."); part[0] {
	case "mov", "cvta":
		set(value(1))
	case "cvt": // cvt.to.from
		v := value(1)
		if part[1] == "u32" {
			v = uint64(uint32(v))
		}
		th.regs[i.args[0]] = v
	case "add":
		set(value(1) + value(2))
	case "sub":
		set(value(1) - value(2))
	case "mul":
		if part[1] == "wide" {
			hi, lo := bits.Mul64(uint64(uint32(value(1))), uint64(uint32(value(2))))
			if hi != 0 {
				t.Fatalf("%v overflows", i)
			}
			set(lo)
		} else {
			set(value(1) * value(2))
		}
	case "shl":
		set(value(1) << value(2))
	case "shr":
		set(value(1) >> value(2))
	case "xor":
		set(value(1) ^ value(2))
	case "and":
		set(value(1) & value(2))
	case "or":
		set(value(1) | value(2))
	case "setp":
		a, b := value(1), value(2)
		switch part[1] {
		case "ge":
			set(truth(a >= b))
		case "eq":
			set(truth(a == b))
		case "ne":
			set(truth(a != b))
		default:
			t.Fatalf("unknown comparison %s", i.op)
		}
	case "bra":
		to, ok := m.labels[i.args[0]]
		if !ok {
			t.Fatalf("no label %s", i.args[0])
		}
		th.at = to
	case "ld":
		if part[1] == "param" {
			set(value(1))
			break
		}
		p := m.pointer(th, i.args[len(i.args)-1], shared, i.op)
		switch i.op {
		case "ld.global.u8":
			th.regs[i.args[0]] = uint64(*(*byte)(p))
		case "ld.global.u64":
			th.regs[i.args[0]] = *(*uint64)(p)
		case "ld.global.v2.u64", "ld.shared.v2.u64":
			pair := (*[2]uint64)(p)
			th.regs[i.args[0]], th.regs[i.args[1]] = pair[0], pair[1]
		default:
			t.Fatalf("unknown load %s", i.op)
		}
	case "st":
		p := m.pointer(th, i.args[0], shared, i.op)
		switch i.op {
		case "st.global.u64":
			*(*uint64)(p) = value(1)
		case "st.global.v2.u64", "st.shared.v2.u64":
			*(*[2]uint64)(p) = [2]uint64{value(1), value(2)}
		default:
			t.Fatalf("unknown store %s", i.op)
		}
	case "atom":
		p := (*uint64)(m.pointer(th, i.args[1], shared, i.op))
		old := *p
		*p += value(2)
		set(old)
	case "bar":
		return true
	case "ret":
		th.over = true
	default:
		t.Fatalf("unknown instruction %s", i.op)
	}
	return false
}

func (i instruction) String() string { return fmt.Sprintf("%s %s", i.op, strings.Join(i.args, ", ")) }

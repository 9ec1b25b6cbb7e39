package pickle

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// The values: nil, bool, int64, uint64 (only above the largest int64), [Big],
// float64, string, []byte, and pointers to these.
type (
	// List is a list, a tuple or a set.
	List struct{ Items []any }
	// Dict is a dictionary, in the order of its file.
	Dict struct{ Keys, Values []any }
	// Big is an integer that needs more than 64 bits.
	Big struct{}
)

// Get gives the value of a key that is a string; nil when there is none.
func (d *Dict) Get(key string) any {
	for i := len(d.Keys) - 1; i >= 0; i-- {
		if k, ok := d.Keys[i].(string); ok && k == key {
			return d.Values[i]
		}
	}
	return nil
}

// Error says why a file is no pickle of plain data.
type Error struct {
	Offset  int64
	Problem string
	Err     error // cause: io.ErrUnexpectedEOF when the file is too short
}

func (e *Error) Error() string { return fmt.Sprintf("byte %d: %s", e.Offset, e.Problem) }
func (e *Error) Unwrap() error { return e.Err }

// The opcodes of plain data (Python's pickletools.py).
const (
	opMark            = '('
	opStop            = '.'
	opPop             = '0'
	opPopMark         = '1'
	opDup             = '2'
	opBinFloat        = 'G'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opNone            = 'N'
	opBinUnicode      = 'X'
	opBinBytes        = 'B'
	opShortBinBytes   = 'C'
	opAppend          = 'a'
	opAppends         = 'e'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opSetItem         = 's'
	opSetItems        = 'u'
	opTuple           = 't'
	opEmptyTuple      = ')'
	opEmptyList       = ']'
	opEmptyDict       = '}'
	opProto           = 0x80
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opTrue            = 0x88
	opFalse           = 0x89
	opLong1           = 0x8a
	opLong4           = 0x8b
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opBinBytes8       = 0x8e
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opMemoize         = 0x94
	opFrame           = 0x95
	opByteArray8      = 0x96
)

const (
	newestProtocol = 5
	// slotBytes is charged for each value on the stack, in a list or in the memo.
	slotBytes = 48
)

// mark is where a list or dictionary begins on the stack.
type mark struct{}

type reader struct {
	in      *bufio.Reader
	offset  int64
	left    int64 // bytes of memory that may still be taken
	stack   []any
	memo    map[uint32]any
	problem *Error
}

// Read reads one value. It takes at most about limitBytes of memory.
func Read(in io.Reader, limitBytes int64) (any, error) {
	r := &reader{in: bufio.NewReaderSize(in, 64<<10), left: limitBytes, memo: map[uint32]any{}}
	if r.byte() != opProto || r.byte() > newestProtocol {
		r.fail("it does not begin as a pickle of protocols 2 to %d does", newestProtocol)
	}
	for r.problem == nil {
		op := r.byte()
		if r.problem != nil {
			break
		}
		if op == opStop {
			v := r.pop()
			if r.problem == nil && len(r.stack) != 0 {
				r.fail("the pickle ends with %d values left over", len(r.stack))
			}
			if r.problem != nil {
				break
			}
			return v, nil
		}
		r.step(op)
	}
	return nil, r.problem
}

func (r *reader) fail(format string, args ...any) {
	if r.problem == nil {
		r.problem = &Error{Offset: r.offset, Problem: fmt.Sprintf(format, args...)}
	}
}

// short is for a file that ends too early, or that cannot be read.
func (r *reader) short(err error) {
	if r.problem != nil {
		return
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	r.fail("the pickle is cut short or cannot be read: %v", err)
	r.problem.Err = err
}

// charge says whether there is memory left for so many bytes.
func (r *reader) charge(bytes uint64) bool {
	if r.problem != nil || bytes > uint64(r.left) {
		r.fail("it needs more memory than a file of its kind may take")
		return false
	}
	r.left -= int64(bytes)
	return true
}

func (r *reader) byte() byte {
	if r.problem != nil {
		return 0
	}
	b, err := r.in.ReadByte()
	if err != nil {
		r.short(err)
		return 0
	}
	r.offset++
	return b
}

// number reads a little endian number of n bytes.
func (r *reader) number(n int) uint64 {
	var b [8]byte
	for i := range n {
		b[i] = r.byte()
	}
	return binary.LittleEndian.Uint64(b[:])
}

// bytes reads n bytes, in pieces: a file that claims more than it has costs no more
// than what it has.
func (r *reader) bytes(n uint64) []byte {
	if !r.charge(n) {
		return nil
	}
	const piece = 64 << 10
	out := make([]byte, 0, min(n, piece))
	for uint64(len(out)) < n && r.problem == nil {
		begin := len(out)
		out = append(out, make([]byte, min(n-uint64(begin), piece))...)
		got, err := io.ReadFull(r.in, out[begin:])
		r.offset += int64(got)
		if err != nil {
			r.short(err)
			return nil
		}
	}
	return out
}

func (r *reader) push(v any) {
	if r.charge(slotBytes) {
		r.stack = append(r.stack, v)
	}
}

// pop takes a value from the stack, which must not be a mark.
func (r *reader) pop() any {
	if r.problem != nil {
		return nil
	}
	if len(r.stack) == 0 {
		r.fail("a value is missing")
		return nil
	}
	v := r.stack[len(r.stack)-1]
	if _, isMark := v.(mark); isMark {
		r.fail("a value is missing")
		return nil
	}
	r.stack = r.stack[:len(r.stack)-1]
	return v
}

// popMark takes the values above the last mark, and the mark.
func (r *reader) popMark() []any {
	for i := len(r.stack) - 1; i >= 0 && r.problem == nil; i-- {
		if _, isMark := r.stack[i].(mark); isMark {
			values := append([]any(nil), r.stack[i+1:]...)
			r.stack = r.stack[:i]
			return values
		}
	}
	r.fail("a mark is missing")
	return nil
}

// top is the list or dictionary that the next values go into.
func top[T any](r *reader, what string) *T {
	var zero T
	if r.problem != nil {
		return &zero
	}
	if len(r.stack) > 0 {
		if v, ok := r.stack[len(r.stack)-1].(*T); ok {
			return v
		}
	}
	r.fail("there is no %s to add to", what)
	return &zero
}

// step carries out one opcode.
func (r *reader) step(op byte) {
	switch op {
	case opFrame:
		r.number(8) // frames only help buffering
	case opMark:
		r.push(mark{})
	case opPop:
		if n := len(r.stack); n > 0 {
			r.stack = r.stack[:n-1]
		} else {
			r.fail("a value is missing")
		}
	case opPopMark:
		r.popMark()
	case opDup:
		v := r.pop()
		r.push(v)
		r.push(v)
	case opNone:
		r.push(nil)
	case opTrue:
		r.push(true)
	case opFalse:
		r.push(false)
	case opBinInt:
		r.push(int64(int32(r.number(4))))
	case opBinInt1:
		r.push(int64(r.number(1)))
	case opBinInt2:
		r.push(int64(r.number(2)))
	case opLong1:
		r.push(r.long(r.number(1)))
	case opLong4:
		r.push(r.long(r.number(4)))
	case opBinFloat:
		var b [8]byte
		for i := range b {
			b[i] = r.byte()
		}
		r.push(math.Float64frombits(binary.BigEndian.Uint64(b[:])))
	case opShortBinUnicode:
		r.push(string(r.bytes(r.number(1))))
	case opBinUnicode:
		r.push(string(r.bytes(r.number(4))))
	case opBinUnicode8:
		r.push(string(r.bytes(r.number(8))))
	case opShortBinBytes:
		r.push(r.bytes(r.number(1)))
	case opBinBytes:
		r.push(r.bytes(r.number(4)))
	case opBinBytes8, opByteArray8:
		r.push(r.bytes(r.number(8)))
	case opEmptyList, opEmptyTuple, opEmptySet:
		r.push(&List{})
	case opEmptyDict:
		r.push(&Dict{})
	case opTuple1, opTuple2, opTuple3:
		items := make([]any, op-opTuple1+1)
		for i := len(items) - 1; i >= 0; i-- {
			items[i] = r.pop()
		}
		r.push(&List{items})
	case opTuple, opFrozenSet:
		r.push(&List{r.popMark()})
	case opAppend:
		v := r.pop()
		r.extend(top[List](r, "list"), v)
	case opAppends, opAddItems:
		values := r.popMark()
		r.extend(top[List](r, "list"), values...)
	case opSetItem:
		v, k := r.pop(), r.pop()
		r.set(top[Dict](r, "dictionary"), k, v)
	case opSetItems:
		values := r.popMark()
		d := top[Dict](r, "dictionary")
		if len(values)%2 != 0 {
			r.fail("a key has no value")
			return
		}
		for i := 0; i < len(values); i += 2 {
			r.set(d, values[i], values[i+1])
		}
	default:
		r.stepMemo(op)
	}
}

func (r *reader) stepMemo(op byte) {
	switch op {
	case opMemoize:
		r.put(uint32(len(r.memo)))
	case opBinPut:
		r.put(uint32(r.number(1)))
	case opLongBinPut:
		r.put(uint32(r.number(4)))
	case opBinGet:
		r.get(uint32(r.number(1)))
	case opLongBinGet:
		r.get(uint32(r.number(4)))
	default:
		if r.problem == nil {
			r.offset--
			r.fail("opcode %#02x does not stand for plain data: the file is damaged, or wants to run code, which is not done", op)
		}
	}
}

func (r *reader) put(at uint32) {
	v := r.pop()
	if r.charge(slotBytes) {
		r.stack = append(r.stack, v)
		r.memo[at] = v
	}
}

func (r *reader) get(at uint32) {
	v, ok := r.memo[at]
	if !ok {
		r.fail("memo %d was never set", at)
		return
	}
	r.push(v)
}

func (r *reader) extend(l *List, values ...any) {
	if r.charge(uint64(len(values)) * slotBytes) {
		l.Items = append(l.Items, values...)
	}
}

func (r *reader) set(d *Dict, key, value any) {
	if r.charge(2 * slotBytes) {
		d.Keys = append(d.Keys, key)
		d.Values = append(d.Values, value)
	}
}

// long reads a little endian two's complement number of n bytes.
func (r *reader) long(n uint64) any {
	b := r.bytes(n)
	if len(b) == 0 {
		return int64(0)
	}
	sign := byte(0)
	if b[len(b)-1] >= 0x80 {
		sign = 0xff
	}
	for len(b) > 8 && b[len(b)-1] == sign {
		b = b[:len(b)-1]
	}
	if len(b) > 8 {
		return Big{}
	}
	var full [8]byte
	for i := range full {
		full[i] = sign
	}
	copy(full[:], b)
	v := binary.LittleEndian.Uint64(full[:])
	if sign == 0 && v > math.MaxInt64 {
		return v
	}
	if sign != 0 && v <= math.MaxInt64 {
		return Big{}
	}
	return int64(v)
}

package torchbin

// The pickle of a state dict: a program for a stack machine. This file accepts exactly the
// opcodes below. Calls build descriptions, never objects.

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Values on the machine's stack are nil, bool, int64, float64, string, tuple,
// *list, *dict, global, storage or *pickled.
type (
	tuple  []any
	list   struct{ items []any }
	dict   struct{ keys, values []any }
	global string // "module.name", one of globals
	mark   struct{}
)

// storage is the object of a persistent id: bytes elsewhere in the file.
type storage struct {
	dtype    tensor.DType // Invalid for untyped storages
	key      string
	elements int64 // of the dtype; bytes for untyped storages
}

// width is the bytes of an element.
func (s storage) width() int64 {
	if s.dtype == tensor.Invalid {
		return 1
	}
	return s.dtype.Bytes(1)
}

// state is a state dict: its tensors, in its order.
type state struct {
	tensors []pickled
	notes   []string // parts of the pickle that are not read
}

// pickled is a tensor as the pickle describes it.
type pickled struct {
	name    string
	dtype   tensor.DType
	shape   []int
	strides []int
	offset  int64 // in elements of the storage
	storage storage
}

// Names that a pickle may refer to. Storages and dtypes stand for an element type;
// the others are calls that this package answers by itself.
var globals = map[string]tensor.DType{
	"collections.OrderedDict":             tensor.Invalid,
	"torch._utils._rebuild_tensor_v2":     tensor.Invalid,
	"torch._utils._rebuild_tensor_v3":     tensor.Invalid,
	"torch._utils._rebuild_parameter":     tensor.Invalid,
	"torch._tensor._rebuild_from_type_v2": tensor.Invalid, // of a tensor with attributes
	"torch.Tensor":                        tensor.Invalid,
	"__builtin__.set":                     tensor.Invalid,
	"torch.storage.UntypedStorage":        tensor.Invalid,
	"torch.UntypedStorage":                tensor.Invalid,
	"torch.DoubleStorage":                 tensor.F64,
	"torch.FloatStorage":                  tensor.F32,
	"torch.HalfStorage":                   tensor.F16,
	"torch.BFloat16Storage":               tensor.BF16,
	"torch.LongStorage":                   tensor.I64,
	"torch.IntStorage":                    tensor.I32,
	"torch.ShortStorage":                  tensor.I16,
	"torch.CharStorage":                   tensor.I8,
	"torch.ByteStorage":                   tensor.U8,
	"torch.BoolStorage":                   tensor.Bool,
	"torch.float8_e4m3fn":                 tensor.F8E4M3,
	"torch.float8_e5m2":                   tensor.F8E5M2,
	"torch.float8_e4m3fnuz":               tensor.F8E4M3FNUZ,
	"torch.float8_e5m2fnuz":               tensor.F8E5M2FNUZ,
	"torch.float8_e8m0fnu":                tensor.F8E8M0,
	"torch.uint16":                        tensor.U16,
	"torch.uint32":                        tensor.U32,
	"torch.uint64":                        tensor.U64,
}

// The limits on a tensor, the same as for safetensors.
const (
	maxRank = 16      // dimensions
	maxDim  = 1 << 40 // elements along one dimension
)

// machine runs a pickle.
type machine struct {
	program  []byte
	at       int
	stack    []any
	memo     map[int]any
	storages map[string]storage // all that the pickle names
}

// execute runs the pickle, and returns the one value that it leaves, and where in the program it ended.
func execute(program []byte) (value any, end int, err error) {
	m := &machine{program: program, memo: map[int]any{}, storages: map[string]storage{}}
	start := 0
	err = format.Parse(func() {
		for op := m.readByte(); op != '.'; op = m.readByte() {
			m.step(op)
			start = m.at
		}
		if value = m.pop(); len(m.stack) > 0 {
			fail("the pickle ends in the middle of a value")
		}
	})
	var known *problem.Error
	if err != nil && !errors.As(err, &known) {
		err = fmt.Errorf("data.pkl: byte %d: %w", start, err)
	}
	return value, m.at, err
}

// fail ends the run.
func fail(cause string, args ...any) { format.Fail(fmt.Errorf(cause, args...)) }

// refuse ends the run of a pickle that loading it the usual way could run.
func (m *machine) refuse(cause string, args ...any) {
	format.Fail(problem.New("", fmt.Sprintf("data.pkl: byte %d: ", m.at)+fmt.Sprintf(cause, args...), hintSafe))
}

// step runs one opcode.
func (m *machine) step(op byte) {
	switch op {
	case 0x80: // PROTO
		if v := m.readByte(); v > 5 {
			fail("pickle protocol %d is not known", v)
		}
	case 0x95: // FRAME
		m.take(8)
	case '}':
		m.push(&dict{})
	case ']':
		m.push(&list{})
	case ')':
		m.push(tuple{})
	case '(':
		m.push(mark{})
	case 'N':
		m.push(nil)
	case 0x88, 0x89:
		m.push(op == 0x88)
	case 'J', 'K', 'M', 0x8a, 'G':
		m.number(op)
	case 'X':
		m.push(string(m.take(int(binary.LittleEndian.Uint32(m.take(4))))))
	case 0x8c:
		m.push(string(m.take(int(m.readByte()))))
	case 'q', 'r', 0x94, 'h', 'j':
		m.memoize(op)
	case 't':
		m.push(tuple(m.popMark()))
	case 0x85, 0x86, 0x87: // TUPLE1, TUPLE2, TUPLE3
		items := make(tuple, op-0x84)
		for i := range slices.Backward(items) {
			items[i] = m.pop()
		}
		m.push(items)
	case 'a', 'e', 's', 'u':
		m.fill(op)
	case 'c', 0x93:
		m.global(op)
	case 'Q':
		m.persistent()
	case 'R':
		m.reduce()
	case 'b': // attributes of an object: a state dict's _metadata, which is dropped
		_, okState := m.pop().(*dict)
		target, okTarget := m.pop().(*dict)
		if !okState || !okTarget {
			fail("attributes for what has none")
		}
		m.push(target)
	default:
		m.at--
		m.refuse("opcode %s is not allowed: no state dict needs it", cmp.Or(opcodeNames[op], fmt.Sprintf("0x%02x", op)))
	}
}

// opcodeNames are the opcodes that hostile pickles use.
var opcodeNames = map[byte]string{
	'i': "INST", 'o': "OBJ", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4",
	'P': "PERSID", 'I': "INT", 'L': "LONG", 'F': "FLOAT", 'S': "STRING", 'T': "BINSTRING", 'U': "SHORT_BINSTRING",
	'V': "UNICODE", 'd': "DICT", 'l': "LIST", 0x8b: "LONG4", 0x8d: "BINUNICODE8", 0x8e: "BINBYTES8",
	0x8f: "EMPTY_SET", 0x90: "ADDITEMS", 0x91: "FROZENSET", 0x96: "BYTEARRAY8", 0x97: "NEXT_BUFFER",
	0x98: "READONLY_BUFFER", 'B': "BINBYTES", 'C': "SHORT_BINBYTES", '0': "POP", '1': "POP_MARK", '2': "DUP",
	'g': "GET", 'p': "PUT"}

func (m *machine) readByte() byte { return m.take(1)[0] }

func (m *machine) take(n int) []byte {
	if n < 0 || n > len(m.program)-m.at {
		fail("ends too early")
	}
	m.at += n
	return m.program[m.at-n : m.at]
}

func (m *machine) line() string {
	n := bytes.IndexByte(m.program[m.at:], '\n')
	if n < 0 {
		fail("a line does not end")
	}
	return string(m.take(n + 1)[:n])
}

func (m *machine) push(v any) { m.stack = append(m.stack, v) }

func (m *machine) pop() any {
	n := len(m.stack)
	if n == 0 {
		fail("the stack is empty")
	}
	v := m.stack[n-1]
	m.stack = m.stack[:n-1]
	if _, ok := v.(mark); ok {
		fail("a mark is in the way")
	}
	return v
}

// popMark takes everything above the last mark, and the mark.
func (m *machine) popMark() (items []any) {
	i := len(m.stack) - 1
	for ; i >= 0; i-- {
		if _, ok := m.stack[i].(mark); ok {
			break
		}
	}
	if i < 0 {
		fail("there is no mark")
	}
	items = append(items, m.stack[i+1:]...)
	m.stack = m.stack[:i]
	return items
}

// number pushes an integer or a float.
func (m *machine) number(op byte) {
	switch op {
	case 'K':
		m.push(int64(m.readByte()))
	case 'M':
		m.push(int64(binary.LittleEndian.Uint16(m.take(2))))
	case 'J':
		m.push(int64(int32(binary.LittleEndian.Uint32(m.take(4)))))
	case 'G':
		m.push(math.Float64frombits(binary.BigEndian.Uint64(m.take(8))))
	default: // two's complement, of a number of bytes
		n := int(m.readByte())
		b := m.take(n)
		if n > 8 {
			fail("an integer of %d bytes", n)
		}
		var v int64
		for i, c := range b {
			v |= int64(c) << (8 * i)
		}
		m.push(v << (64 - 8*n) >> (64 - 8*n)) // with its sign
	}
}

// memoize stores the top of the stack under a number, or pushes a stored value.
func (m *machine) memoize(op byte) {
	key := len(m.memo)
	switch op {
	case 'q', 'h':
		key = int(m.readByte())
	case 'r', 'j':
		key = int(binary.LittleEndian.Uint32(m.take(4)))
	}
	if op == 'h' || op == 'j' {
		v, ok := m.memo[key]
		if !ok {
			fail("nothing is kept under %d", key)
		}
		m.push(v)
		return
	}
	v := m.pop()
	m.memo[key] = v
	m.push(v)
}

// fill appends to a list (APPEND, APPENDS) or adds to a dict (SETITEM, SETITEMS).
func (m *machine) fill(op byte) {
	var items []any
	switch op {
	case 'e', 'u':
		items = m.popMark()
	case 'a':
		items = []any{m.pop()}
	case 's':
		value := m.pop()
		items = []any{m.pop(), value}
	}
	switch target := m.pop().(type) {
	case *list:
		if op == 'a' || op == 'e' {
			target.items = append(target.items, items...)
			m.push(target)
			return
		}
	case *dict:
		if (op == 's' || op == 'u') && len(items)%2 == 0 {
			for i := 0; i < len(items); i += 2 {
				target.keys = append(target.keys, items[i])
				target.values = append(target.values, items[i+1])
			}
			m.push(target)
			return
		}
	}
	fail("items for what cannot take them")
}

// global pushes a name that the pickle refers to; it refuses names that are not in globals.
func (m *machine) global(op byte) {
	var full string
	if op == 'c' {
		module := m.line()
		full = module + "." + m.line()
	} else {
		under := max(len(m.stack)-2, 0)
		names := append(slices.Clone(m.stack[under:]), nil, nil)
		module, okModule := names[0].(string)
		name, okName := names[1].(string)
		if !okModule || !okName {
			fail("a name that is not a string")
		}
		m.stack, full = m.stack[:under], module+"."+name
	}
	if _, ok := globals[full]; !ok {
		m.refuse("refers to %s, which is not allowed: loading it could run code", text.Quote(full))
	}
	m.push(global(full))
}

// persistent answers ("storage", type, key, location, elements) with the storage.
func (m *machine) persistent() {
	id, ok := m.pop().(tuple)
	if !ok || len(id) != 5 || id[0] != "storage" {
		fail("a persistent id that names no storage")
	}
	kind, okKind := id[1].(global)
	key, okKey := id[2].(string)
	elements, okElements := id[4].(int64)
	if !okKind || !okKey || !okElements || key == "" || elements < 0 {
		fail("a persistent id that names no storage")
	}
	s := storage{dtype: globals[string(kind)], key: key, elements: elements}
	if first, ok := m.storages[key]; ok && first != s {
		fail("storage %s is not what it was before: %d elements of %d bytes, then %d of %d", text.Quote(key),
			first.elements, first.width(), elements, s.width())
	}
	m.storages[key] = s
	m.push(s)
}

// reduce answers a call.
func (m *machine) reduce() {
	args, okArgs := m.pop().(tuple)
	name, okName := m.pop().(global)
	if !okArgs || !okName {
		fail("a call of a value that is not a function")
	}
	switch name {
	case "collections.OrderedDict":
		if len(args) == 0 {
			m.push(&dict{})
			return
		}
	case "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3":
		m.rebuild(string(name), args)
		return
	case "torch._tensor._rebuild_from_type_v2": // the function, the type, its arguments, attributes, which are dropped
		of, args := slices.Concat(args, tuple{nil, nil, nil, nil})[:4], tuple(nil)
		if args, okArgs = of[2].(tuple); okArgs && of[1] == global("torch.Tensor") && of[0] == global("torch._utils._rebuild_tensor_v2") {
			m.rebuild("torch._utils._rebuild_tensor_v2", args)
			return
		}
	case "__builtin__.set":
		if len(args) == 1 {
			m.push(args[0])
			return
		}
	case "torch._utils._rebuild_parameter":
		if len(args) >= 1 {
			if t, ok := args[0].(*pickled); ok {
				m.push(t)
				return
			}
		}
	}
	fail("a call of %s that makes no tensor", name)
}

// rebuild makes the tensor of (storage, offset, size, stride, …), version 3 with
// the dtype as the seventh.
func (m *machine) rebuild(name string, args tuple) {
	if len(args) < 6 {
		fail("a call of %s with %d arguments", name, len(args))
	}
	s, okS := args[0].(storage)
	offset, okO := args[1].(int64)
	shape, okShape := dims(args[2])
	strides, okStrides := dims(args[3])
	if !okS || !okO || !okShape || !okStrides || offset < 0 || len(shape) != len(strides) {
		fail("a call of %s with wrong arguments", name)
	}
	t := &pickled{dtype: s.dtype, shape: shape, strides: strides, offset: offset, storage: s}
	if name == "torch._utils._rebuild_tensor_v3" && len(args) >= 7 {
		g, _ := args[6].(global)
		t.dtype = globals[string(g)]
	}
	if t.dtype == tensor.Invalid {
		fail("a tensor of no known dtype")
	}
	m.push(t)
}

// dims reads a tuple of lengths.
func dims(v any) ([]int, bool) {
	items, ok := v.(tuple)
	if !ok || len(items) > maxRank {
		return nil, false
	}
	out := make([]int, len(items))
	for i, item := range items {
		n, ok := item.(int64)
		if !ok || n < 0 || n > min(maxDim, math.MaxInt) {
			return nil, false
		}
		out[i] = int(n)
	}
	return out, true
}

// nest is the key under which trainers put the state dict beside a state of their own.
const nest = "state_dict"

// stateDict takes the tensors out of a state dict, or of one in a dict under nest.
func stateDict(v any) (*state, error) {
	d, ok := v.(*dict)
	if !ok {
		return nil, fmt.Errorf("data.pkl: holds no state dict")
	}
	s := &state{}
	if inner, others := d.nested(); inner != nil {
		d = inner
		if len(others) > 0 {
			s.notes = []string{"the weights are those under " + nest + "; not read: " + strings.Join(others, ", ")}
		}
	}
	if len(d.keys) == 0 {
		return nil, fmt.Errorf("data.pkl: the state dict is empty")
	}
	seen := map[string]bool{}
	for i, key := range d.keys {
		name, ok := key.(string)
		if !ok {
			return nil, fmt.Errorf("data.pkl: a key of the state dict is not a string")
		}
		if seen[name] {
			return nil, problem.In("", problem.Problem{Tensor: name, Cause: "name occurs twice"})
		}
		seen[name] = true
		t, ok := d.values[i].(*pickled)
		if !ok {
			return nil, problem.In("", problem.Problem{Tensor: name, Cause: "is not a tensor",
				Hint: "a plain state dict is read, or one under " + nest + ": save model.state_dict() itself"})
		}
		s.tensors = append(s.tensors, *t)
		s.tensors[i].name = name
	}
	return s, nil
}

// maxOthers is how many keys beside the state dict are named.
const maxOthers = 10

// nested returns the dict under nest and the keys beside it; nil without nest, or with a
// tensor beside it.
func (d *dict) nested() (inner *dict, others []string) {
	for i, v := range d.values {
		switch v := v.(type) {
		case *pickled:
			return nil, nil
		case *dict:
			if d.keys[i] == nest && inner == nil {
				inner = v
				continue
			}
		}
		if len(others) == maxOthers {
			others = append(others, "…")
		} else if key, ok := d.keys[i].(string); ok && len(others) < maxOthers {
			others = append(others, text.Quote(key))
		}
	}
	return inner, others
}

// checkContiguous refuses a tensor with elements that are not consecutive.
func (t pickled) checkContiguous() error {
	if slices.Contains(t.shape, 0) {
		return nil
	}
	step := 1
	for i := len(t.shape) - 1; i >= 0; i-- {
		if t.shape[i] > 1 && t.strides[i] != step {
			return fmt.Errorf("shape %v with strides %v is not contiguous: save the tensor with .contiguous()", t.shape,
				t.strides)
		}
		step *= t.shape[i]
	}
	return nil
}

package digest

// Runs of a message that are hashed apart. BLAKE3 is a tree whose leaves are the message's chunks of
// 1024 bytes: a run is named by the values of the complete subtrees that it consists of, and
// Join computes the rest of the tree from them.

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"

	"lukechampine.com/blake3/guts"
)

// Chunk is the bytes of a chunk: runs begin at multiples of it.
const Chunk = guts.ChunkSize

// guts hashes the bytes of a subtree of this height at once, with vectors.
const (
	heightAtOnce = 4
	atOnce       = Chunk << heightAtOnce
)

// tree is a subtree of 1 << height chunks. The last chunk of a message may be smaller.
type tree struct {
	height int
	value  [8]uint32
}

// run is the Hash of the bytes of a message from a chunk on.
type run struct {
	first uint64 // chunk
	next  uint64 // first chunk that is not in trees
	trees []tree
	rest  []byte // bytes behind trees
}

// From returns the hash of no bytes of a message, of those from offset on. Offset is a multiple of Chunk. The
// message also has bytes outside of the run: a run's name is not a message's.
func From(offset int64) Hash {
	first := uint64(offset / Chunk)
	return &run{first: first, next: first, rest: make([]byte, 0, atOnce)}
}

// Reset implements Hash.
func (r *run) Reset() { r.next, r.trees, r.rest = r.first, r.trees[:0], r.rest[:0] }

// Write implements Hash.
func (r *run) Write(data []byte) (int, error) {
	n := len(data)
	for len(data) > 0 {
		room := int(guts.MaxSIMD-r.next%guts.MaxSIMD) * Chunk // up to the next subtree of MaxSIMD chunks
		take := min(room-len(r.rest), len(data))
		r.rest, data = append(r.rest, data[:take]...), data[take:]
		if len(r.rest) == room {
			r.trees, r.next, r.rest = compress(r.trees, r.next, r.rest), r.next+uint64(room/Chunk), r.rest[:0]
		}
	}
	return n, nil
}

// compress appends the subtrees of data, whose first chunk is next, and joins those that complete larger ones.
// The last chunk may be smaller.
func compress(trees []tree, next uint64, data []byte) []tree {
	chunks := uint64(len(data) / Chunk)
	for _, height := range guts.Eigentrees(next, chunks) {
		bytes := Chunk << height
		var node guts.Node
		if height == heightAtOnce {
			node = guts.CompressBuffer((*[atOnce]byte)(data), bytes, &guts.IV, next, 0)
		} else {
			node = guts.CompressEigentree(data[:bytes:bytes], &guts.IV, next, 0)
		}
		next += 1 << height
		trees = push(trees, tree{height, guts.ChainingValue(node)}, next)
		data = data[bytes:]
	}
	if len(data) > 0 {
		trees = append(trees, tree{0, guts.ChainingValue(guts.CompressChunk(data, &guts.IV, next, 0))})
	}
	return trees
}

// push appends a subtree that ends before the chunk end, and joins pairs of subtrees.
func push(trees []tree, t tree, end uint64) []tree {
	for n := len(trees); n > 0 && trees[n-1].height == t.height && end%(2<<t.height) == 0; n = len(trees) {
		t = tree{t.height + 1, parent(trees[n-1], t, 0)}
		trees = trees[:n-1]
	}
	return append(trees, t)
}

func parent(left, right tree, flags uint32) [8]uint32 {
	return guts.ChainingValue(guts.ParentNode(left.value, right.value, &guts.IV, flags))
}

// runMark begins the name of a run: "blake3-run:FIRST:HEIGHT:VALUE:HEIGHT:VALUE".
const runMark = "blake3-run:"

// Name implements Hash. Chunks are whole unless the message ends with the run.
func (r *run) Name() string {
	b := strconv.AppendUint([]byte(runMark), r.first, 10)
	for _, t := range compress(slices.Clone(r.trees), r.next, r.rest) {
		var value []byte
		for _, word := range t.value {
			value = binary.LittleEndian.AppendUint32(value, word)
		}
		b = append(strconv.AppendInt(append(b, ':'), int64(t.height), 10), ':')
		b = base64.RawStdEncoding.AppendEncode(b, value)
	}
	return string(b)
}

// errJoin says that the names do not belong to neighbouring runs of one message.
var errJoin = errors.New("the hashes of a tensor's runs do not join")

// Join names the message whose runs, in order, have these names. One name alone is the message's.
func Join(names ...string) (string, error) {
	if len(names) == 1 && !strings.HasPrefix(names[0], runMark) {
		return names[0], nil
	}
	var trees []tree
	next := uint64(0)
	for _, name := range names {
		first, of, err := parseRun(name)
		if err != nil || first != next {
			return "", errors.Join(errJoin, err)
		}
		for _, t := range of {
			if n := len(trees) - 1; n >= 0 { // the last subtree is joined when another follows: it is not the root
				trees = push(trees[:n], trees[n], next)
			}
			trees = append(trees, t)
			next += 1 << t.height
		}
	}
	if len(trees) < 2 {
		return "", errJoin
	}
	last := trees[len(trees)-1]
	for i := len(trees) - 2; i > 0; i-- {
		last.value = parent(trees[i], last, 0)
	}
	var sum []byte
	for _, word := range parent(trees[0], last, guts.FlagRoot) {
		sum = binary.LittleEndian.AppendUint32(sum, word)
	}
	return name(sum), nil
}

// parseRun reads the name of a run.
func parseRun(name string) (first uint64, trees []tree, err error) {
	text, is := strings.CutPrefix(name, runMark)
	parts := strings.Split(text, ":")
	first, err = strconv.ParseUint(parts[0], 10, 63)
	if !is || err != nil || len(parts)%2 == 0 {
		return 0, nil, errJoin
	}
	for i := 1; i < len(parts); i += 2 {
		height, err := strconv.Atoi(parts[i])
		value, valueErr := base64.RawStdEncoding.DecodeString(parts[i+1])
		if err != nil || valueErr != nil || height < 0 || height > 53 || len(value) != size {
			return 0, nil, errJoin
		}
		t := tree{height: height}
		for k := range t.value {
			t.value[k] = binary.LittleEndian.Uint32(value[4*k:])
		}
		trees = append(trees, t)
	}
	return first, trees, nil
}

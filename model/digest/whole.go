package digest

import (
	"encoding/binary"
	"fmt"

	"lukechampine.com/blake3/guts"
)

// atOnce is the bytes that the library hashes at once, with vectors.
const atOnce = guts.MaxSIMD * Chunk

// whole is the Hash of all bytes of a message. The library's own Hasher takes a goroutine for every atOnce bytes, and
// hashes parts of that many where writes do not end with them: a third more time.
type whole struct {
	trees []tree
	next  uint64 // first chunk that is not in trees
	rest  []byte // bytes behind trees, at most atOnce: the last ones of a message are hashed otherwise
}

// Reset implements Hash.
func (w *whole) Reset() { w.trees, w.next, w.rest = w.trees[:0], 0, w.rest[:0] }

// Write implements Hash.
func (w *whole) Write(data []byte) (int, error) {
	n := len(data)
	for len(data) > 0 {
		if len(w.rest) == atOnce {
			w.push(w.rest)
			w.rest = w.rest[:0]
		}
		for ; len(w.rest) == 0 && len(data) > atOnce; data = data[atOnce:] {
			w.push(data)
		}
		take := min(atOnce-len(w.rest), len(data))
		w.rest, data = append(w.rest, data[:take]...), data[take:]
	}
	return n, nil
}

// push appends the subtree of the first atOnce bytes of data, which are not the message's last.
func (w *whole) push(data []byte) {
	const height = 4 // of MaxSIMD chunks
	node := guts.CompressBuffer((*[atOnce]byte)(data), atOnce, &guts.IV, w.next, 0)
	w.next += guts.MaxSIMD
	w.trees = push(w.trees, tree{height, guts.ChainingValue(node)}, w.next)
}

// Name implements Hash.
func (w *whole) Name() string {
	node := guts.CompressBuffer((*[atOnce]byte)(w.rest[:atOnce]), len(w.rest), &guts.IV, w.next, 0)
	for i := len(w.trees) - 1; i >= 0; i-- {
		node = guts.ParentNode(w.trees[i].value, guts.ChainingValue(node), &guts.IV, 0)
	}
	node.Flags |= guts.FlagRoot
	var sum []byte
	for _, word := range guts.ChainingValue(node) {
		sum = binary.LittleEndian.AppendUint32(sum, word)
	}
	return fmt.Sprintf("blake3:%x", sum)
}

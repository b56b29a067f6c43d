// Package arena hands out the buffers of activations, so that a layer reuses the buffers of the
// layer before.
package arena

import (
	"math/bits"
	"runtime"
	"sync"
)

// Arena is the buffers of one pass. It serves one goroutine at a time. Large buffers are not its own: the
// garbage collector takes each of them back when its last reader has run, long before a layer ends.
type Arena struct {
	free [64][][]float32 // by the logarithm of their capacity
	used [][]float32
	made int // numbers of large buffers since the last collection
}

const (
	large   = 1 << 20 // numbers above which a buffer is large
	garbage = 1 << 26 // numbers of large buffers that may be made before they are collected
)

// arenas keeps the memory of passes for the next ones.
var arenas = sync.Pool{New: func() any { return new(Arena) }}

// New returns an arena with the memory of passes that ended.
func New() *Arena { return arenas.Get().(*Arena) }

// Close takes back all buffers except the one of keep, for later arenas.
func (a *Arena) Close(keep []float32) {
	a.Release(0, nil, keep)
	a.used = nil
	arenas.Put(a)
}

// Get returns n numbers with undefined values.
func (a *Arena) Get(n int) []float32 {
	if n > large { // a buffer of its own; a collection costs little where most of the memory is numbers
		if a.made += n; a.made > garbage {
			runtime.GC()
			a.made = n
		}
		return make([]float32, n)
	}
	class := bits.Len(uint(max(n, 1) - 1))
	if last := len(a.free[class]) - 1; last >= 0 {
		buf := a.free[class][last][:n]
		a.free[class] = a.free[class][:last]
		a.used = append(a.used, buf)
		return buf
	}
	buf := make([]float32, n, 1<<class)
	a.used = append(a.used, buf)
	return buf
}

// Own returns values if their buffer is the arena's, else nil: who keeps them keeps no large buffer.
func (a *Arena) Own(values []float32) []float32 {
	if cap(values) > large {
		return nil
	}
	return values
}

// Mark returns the number of buffers handed out so far.
func (a *Arena) Mark() int { return len(a.used) }

// Release takes back the buffers handed out since mark and the buffer of dropped, however old,
// but not the buffer of keep.
func (a *Arena) Release(mark int, dropped, keep []float32) {
	for i := mark - 1; i >= 0 && !sameBuffer(dropped, keep); i-- {
		if sameBuffer(a.used[i], dropped) {
			mark--
			a.used[i], a.used[mark] = a.used[mark], a.used[i]
			break
		}
	}
	kept := a.used[:mark]
	for _, buf := range a.used[mark:] {
		if sameBuffer(buf, keep) {
			kept = append(kept, buf)
		} else {
			class := bits.Len(uint(cap(buf))) - 1
			a.free[class] = append(a.free[class], buf)
		}
	}
	a.used = kept
}

// sameBuffer reports whether two slices begin at the same number.
func sameBuffer(a, b []float32) bool { return len(a) > 0 && len(b) > 0 && &a[0] == &b[0] }

package remote

// Objects whose bytes are written in any order, or without knowing how many there will be.

import (
	"io"
	"iter"
	"sync"
)

// Assembly is an upload whose bytes are written in any order, each once. A part stays in memory from its first
// byte to its last.
type Assembly struct {
	*upload
	mu      sync.Mutex
	missing []int64        // bytes of each part that are not written yet
	open    map[int][]byte // parts with missing bytes
}

// Assemble has an upload be written in these spans, from begin to end; the bytes between them are zeros.
func Assemble(u *upload, spans iter.Seq2[int64, int64]) *Assembly {
	a := &Assembly{upload: u, missing: make([]int64, len(u.parts)), open: map[int][]byte{}}
	for begin, end := range spans {
		for i := begin / u.part; begin < end; i++ {
			next := min(end, (i+1)*u.part)
			a.missing[i] += next - begin
			begin = next
		}
	}
	return a
}

// WriteAt writes bytes of one span, and sends the parts that they complete. Bytes of parts that the store has
// already are ignored. It is safe for concurrent use.
func (a *Assembly) WriteAt(b []byte, at int64) error {
	for len(b) > 0 {
		i := int(at / a.part)
		begin := at - int64(i)*a.part
		run := b[:min(int64(len(b)), a.part-begin)]
		b, at = b[len(run):], at+int64(len(run))
		a.mu.Lock()
		if a.Has(i) {
			a.mu.Unlock()
			continue
		}
		part := a.open[i]
		if part == nil {
			part = a.s.parts.take(a.partSize(i), a.s.c.Part)
			a.open[i] = part
		}
		a.mu.Unlock()
		copy(part[begin:], run)
		a.mu.Lock()
		a.missing[i] -= int64(len(run))
		whole := a.missing[i] == 0
		if whole {
			delete(a.open, i)
		}
		a.mu.Unlock()
		if !whole {
			continue
		}
		err := a.Send(i, part)
		a.s.parts.mu.Lock()
		a.s.parts.idle = append(a.s.parts.idle, part)
		a.s.parts.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// HasBytes reports whether the store has the bytes from begin to end.
func (a *Assembly) HasBytes(begin, end int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := begin / a.part; i*a.part < end; i++ {
		if !a.Has(int(i)) {
			return false
		}
	}
	return true
}

// Sent returns the bytes that the store has.
func (a *Assembly) Sent() (n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.parts {
		if a.Has(i) {
			n += a.partSize(i)
		}
	}
	return n
}

// Finish sends the parts of zeros alone, and makes the object of all parts.
func (a *Assembly) Finish() error {
	for i := range a.parts {
		if !a.Has(i) && a.missing[i] == 0 {
			if err := a.Send(i, make([]byte, a.partSize(i))); err != nil {
				return err
			}
		}
	}
	return a.upload.Finish()
}

// Write writes an object of the bytes that fill writes. It appears when it is complete.
func (s *Store) Write(name string, fill func(io.Writer) error) error {
	w := &writer{upload: upload{s: s, name: name, part: s.c.Part}}
	if err := fill(w); err != nil {
		return err
	}
	if w.id == "" {
		return s.Put(name, w.data)
	}
	if err := w.send(); err != nil {
		return err
	}
	return w.Finish()
}

// writer is an upload of bytes in their order.
type writer struct {
	upload
	data []byte // of the next part
}

// Write sends whole parts when more bytes follow.
func (w *writer) Write(b []byte) (int, error) {
	for left := b; ; {
		n := min(len(left), int(w.part)-len(w.data))
		w.data, left = append(w.data, left[:n]...), left[n:]
		if len(left) == 0 {
			return len(b), nil
		}
		if err := w.send(); err != nil {
			return 0, err
		}
	}
}

func (w *writer) send() error {
	w.size += int64(len(w.data))
	w.parts = append(w.parts, uploaded{})
	err := w.Send(len(w.parts)-1, w.data)
	w.data = w.data[:0]
	return err
}

// Package digest names bytes: "blake3:" and the hexadecimal digits of their 256-bit BLAKE3
// hash, as plans, journals, manifests and inspections hold it.
package digest

import (
	"context"
	"encoding/hex"
	"io"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/cpu"
)

// size is the bytes of a hash.
const size = 32

// Hash hashes the bytes that are written to it. No write fails.
type Hash interface {
	io.Writer
	// Name returns the name of all bytes written; more may be written.
	Name() string
	// Reset forgets the bytes.
	Reset()
}

// whole is the Hash of all bytes of a message.
type whole struct{ *blake3.Hasher }

// New returns the hash of no bytes.
func New() Hash {
	if cpu.X86.HasAVX512F {
		return &wide{rest: make([]byte, 0, atOnce)}
	}
	return whole{blake3.New()}
}

// Name implements Hash.
func (w whole) Name() string { return name(w.Sum(nil)) }

func name(sum []byte) string { return "blake3:" + hex.EncodeToString(sum) }

// Of names data.
func Of(data []byte) string {
	sum := blake3.Sum256(data)
	return name(sum[:])
}

// Copy copies src to dst until ctx is done, and returns the name and the number of the bytes.
// It calls progress with the bytes of each read.
func Copy(ctx context.Context, dst io.Writer, src io.Reader, progress func(n int64)) (name string, n int64, err error) {
	h := New()
	n, err = io.Copy(io.MultiWriter(h, dst), reader{src, ctx, progress})
	return h.Name(), n, err
}

// reader reads until its context is done.
type reader struct {
	io.Reader
	ctx      context.Context
	progress func(n int64)
}

// Read implements io.Reader.
func (r reader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.Reader.Read(b)
	r.progress(int64(n))
	return n, err
}

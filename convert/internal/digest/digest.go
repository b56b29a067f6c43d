// Package digest names bytes: "blake3:" and the hexadecimal digits of their 256-bit BLAKE3
// hash, as plans, journals and manifests hold it.
package digest

import (
	"encoding/hex"
	"hash"
	"io"

	"lukechampine.com/blake3"
)

// size is the bytes of a hash.
const size = 32

// Hash takes bytes in, of a stream of any length.
type Hash struct{ hash.Hash }

// New returns a hash of nothing yet.
func New() Hash { return Hash{blake3.New(size, nil)} }

// Name returns the name of all that was written.
func (h Hash) Name() string { return "blake3:" + hex.EncodeToString(h.Sum(nil)) }

// Of names data.
func Of(data []byte) string {
	sum := blake3.Sum256(data)
	return "blake3:" + hex.EncodeToString(sum[:])
}

// Reader names all that r reads, and returns the number of bytes.
func Reader(r io.Reader) (name string, n int64, err error) {
	h := New()
	n, err = io.Copy(h, r)
	return h.Name(), n, err
}

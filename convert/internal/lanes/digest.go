package lanes

import (
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"errors"
	"hash"
)

// Digest is one SHA-256 under way. The zero value has absorbed nothing; a copy
// goes on from the same state.
type Digest struct {
	h      [8]uint32 // the state, exclusive or initial
	x      [sha256.BlockSize]byte
	length uint64 // of all absorbed, the rest modulo a block being in x
}

// initial is the state of FIPS 180-4, section 5.3.3.
var initial = [8]uint32{
	0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
}

// Write absorbs b with crypto/sha256.
func (d *Digest) Write(b []byte) {
	if n := d.partial(); n+len(b) < len(d.x) {
		copy(d.x[n:], b)
		d.length += uint64(len(b))
		return
	}
	h := d.standard()
	h.Write(b)
	state, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	if err == nil {
		err = d.UnmarshalBinary(state)
	}
	if err != nil {
		panic(err)
	}
}

// Sum returns the SHA-256 of what has been absorbed. It does not change d.
func (d *Digest) Sum() (sum [sha256.Size]byte) {
	d.standard().Sum(sum[:0])
	return sum
}

// partial is the number of bytes in x.
func (d *Digest) partial() int { return int(d.length % uint64(len(d.x))) }

// standard returns a hash of crypto/sha256 in the state of d.
func (d *Digest) standard() hash.Hash {
	h := sha256.New()
	state, err := d.MarshalBinary()
	if err == nil {
		err = h.(encoding.BinaryUnmarshaler).UnmarshalBinary(state)
	}
	if err != nil {
		panic(err)
	}
	return h
}

// The encoding of crypto/sha256: magic, state, x, length, all big-endian.
const (
	magic         = "sha\x03"
	marshaledSize = len(magic) + 8*4 + sha256.BlockSize + 8
)

// MarshalBinary implements [encoding.BinaryMarshaler] with the encoding that
// crypto/sha256 has.
func (d *Digest) MarshalBinary() ([]byte, error) {
	b := append(make([]byte, 0, marshaledSize), magic...)
	for i, v := range d.h {
		b = binary.BigEndian.AppendUint32(b, v^initial[i])
	}
	n := d.partial()
	b = append(b, d.x[:n]...)
	b = append(b, make([]byte, len(d.x)-n)...)
	return binary.BigEndian.AppendUint64(b, d.length), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]. It takes a state of
// crypto/sha256 too.
func (d *Digest) UnmarshalBinary(b []byte) error {
	if len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return errors.New("lanes: invalid hash state identifier")
	}
	if len(b) != marshaledSize {
		return errors.New("lanes: invalid hash state size")
	}
	b = b[len(magic):]
	for i := range d.h {
		d.h[i] = binary.BigEndian.Uint32(b) ^ initial[i]
		b = b[4:]
	}
	b = b[copy(d.x[:], b):]
	d.length = binary.BigEndian.Uint64(b)
	return nil
}

// Package tensor holds the smallest thing a checkpoint is made of: bytes with a
// dtype and a shape. Info describes a tensor without its data; Tensor is a view
// of the data, usually of a mapped file; Float32s decodes it. The package never
// opens a file and never copies data that it need not.
package tensor

import (
	"fmt"
	"math"
	"math/bits"
)

// Info is a tensor's header entry.
type Info struct {
	Name  string // as the file spells it
	DType DType  // of each element
	Shape []int  // outermost dimension first; empty for a scalar
}

// Len returns the number of elements, the product of the shape.
func (i Info) Len() int { return int(product(i.Shape)) }

// Bytes returns the size of the data in bytes.
func (i Info) Bytes() int64 { return i.DType.Bytes(product(i.Shape)) }

// Tensor is a view of a tensor's elements: little-endian, row-major, not
// necessarily aligned. Data may be a mapped file and must not be written to.
type Tensor struct {
	DType DType  // of each element
	Shape []int  // outermost dimension first; empty for a scalar
	Data  []byte // the elements, as many bytes as they need
}

// Len returns the number of elements.
func (t Tensor) Len() int { return int(product(t.Shape)) }

// Row returns the view of row i along the first axis, which of a blocked dtype is not the
// only one.
func (t Tensor) Row(i int) Tensor {
	n := int(t.DType.Bytes(product(t.Shape[1:])))
	return Tensor{DType: t.DType, Shape: t.Shape[1:], Data: t.Data[i*n : (i+1)*n : (i+1)*n]}
}

// product is in 64 bits, as a file may hold more than the address space of the platform.
func product(shape []int) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= int64(d)
	}
	return n
}

// Size returns the number of bytes that shape needs in dtype d, or an error if a
// dimension is negative, the number of elements or of their bits does not fit in 64
// bits, the elements do not fill whole bytes, or the rows no whole blocks.
func Size(d DType, shape []int) (int64, error) {
	n := uint64(1)
	for _, dim := range shape {
		if dim < 0 {
			return 0, fmt.Errorf("negative dimension %d", dim)
		}
		hi, lo := bits.Mul64(n, uint64(dim))
		if hi != 0 {
			return 0, fmt.Errorf("number of elements overflows 64 bits")
		}
		n = lo
	}
	elements, bytes := d.Block()
	if d.Blocked() && (len(shape) == 0 || shape[len(shape)-1]%elements != 0) {
		return 0, fmt.Errorf("rows of shape %v are no whole blocks of %d elements of %s", shape, elements, d)
	}
	if n%uint64(elements) != 0 {
		return 0, fmt.Errorf("%d elements of %s do not fill whole bytes", n, d)
	}
	hi, lo := bits.Mul64(n/uint64(elements), uint64(bytes))
	if hi != 0 || lo > math.MaxUint64/8 {
		return 0, fmt.Errorf("number of bits overflows 64 bits")
	}
	return int64(lo), nil
}

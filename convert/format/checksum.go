package format

import "io"

// Checksum is a checksum that a file holds of a run of its bytes.
type Checksum struct {
	Name   string // of the run, in the file's terms
	Tensor string // first tensor in the run; "" for a run without tensors
	Offset int64  // of its first byte in the file
	Size   int64  // in bytes
	CRC32  uint32 // of the bytes, by the polynomial of IEEE 802.3
}

// Checksummed is a File whose format holds checksums of its data.
type Checksummed interface {
	File
	// Checksums returns them all, read from r, which is the file. It reads no weights.
	Checksums(r io.ReaderAt) ([]Checksum, error)
}

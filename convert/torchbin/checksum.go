package torchbin

import (
	"archive/zip"
	"io"

	"dsmoe/convert/format"
)

var _ format.Checksummed = (*file)(nil)

// Checksums returns the checksums of the zip archive's entries.
func (f *file) Checksums(r io.ReaderAt) ([]format.Checksum, error) {
	size := f.Stat().Size
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, err
	}
	tensors := make(map[int64]string, len(f.Entries))
	for i := len(f.Entries) - 1; i >= 0; i-- {
		tensors[f.Entries[i].Offset] = f.Entries[i].Info.Name
	}
	var all []format.Checksum
	for _, e := range z.File {
		start, err := e.DataOffset()
		if err != nil {
			return nil, err
		}
		stored := int64(e.UncompressedSize64)
		if e.Method != zip.Store || stored <= 0 || stored > size-start {
			continue // a folder, or what no tensor lies in
		}
		all = append(all, format.Checksum{Name: e.Name, Tensor: tensors[start], Offset: start, Size: stored, CRC32: e.CRC32})
	}
	return all, nil
}

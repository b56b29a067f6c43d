package torchbin

// The archive that torch.save writes: a zip file with data.pkl and a file per storage.

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// archive is the zip file: its entries by name, without the folder they all share.
type archive struct {
	size    int64
	entries map[string]*zip.File
}

func openArchive(f io.ReaderAt, size int64) (*archive, error) {
	z, err := zip.NewReader(f, size)
	if err != nil {
		return nil, notArchive(f, size)
	}
	if len(z.File) > maxEntries {
		return nil, fmt.Errorf("archive has %d entries, more than the limit of %d", len(z.File), maxEntries)
	}
	a := &archive{size: size, entries: map[string]*zip.File{}}
	root := ""
	for i, e := range z.File {
		folder, rest, _ := strings.Cut(e.Name, "/")
		if i == 0 {
			root = folder
		}
		if folder != root || rest == "" {
			return nil, fmt.Errorf("archive entry %s is outside the folder %s that torch.save puts all in", text.Quote(e.Name),
				text.Quote(root))
		}
		if a.entries[rest] != nil {
			return nil, fmt.Errorf("archive entry %s is there twice", text.Quote(e.Name))
		}
		a.entries[rest] = e
	}
	if e := a.entries["byteorder"]; e != nil {
		order, err := a.content(e, 16)
		if err == nil && string(order) != "little" {
			err = fmt.Errorf("byte order is %s, not little", text.Quote(string(order)))
		}
		return a, err
	}
	return a, nil
}

// legacyMagic is the opcodes of the number that a file of torch before 1.6 begins with, behind PROTO and FRAME.
const legacyMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."

const hintLegacy = "load it with torch 1.6 or later where you trust it, and save it again: torch.save(torch.load(FILE), FILE)"

// notArchive is the error for a file that is not a zip archive; it names the kind of file.
func notArchive(f io.ReaderAt, size int64) error {
	var head [64]byte
	n, _ := f.ReadAt(head[:], 0)
	switch {
	case size == 0:
		return errors.New("file is empty")
	case strings.HasPrefix(string(head[:n]), "PK\x03\x04"):
		return problem.New("", "archive is cut off: its directory is missing", hintDownload)
	case strings.HasPrefix(string(head[:n]), format.LFSPointer):
		return problem.New("", format.LFSCause, format.LFSHint)
	case strings.Contains(string(head[:n]), legacyMagic):
		return problem.New("", "was written by torch before 1.6, or in its format, which is not read", hintLegacy)
	case n > 1 && head[0] == 0x80 && head[1] <= 5:
		return problem.New("", "is a plain pickle, not written by torch.save", hintSafe)
	}
	return errors.New("is not a zip archive, as torch.save writes")
}

// content reads an entry of at most limit bytes and checks its checksum.
func (a *archive) content(e *zip.File, limit uint64) ([]byte, error) {
	if e.UncompressedSize64 > limit {
		return nil, fmt.Errorf("archive entry %s has %s, more than the limit of %s", text.Quote(e.Name),
			text.ExactBytes(int64(e.UncompressedSize64)), text.Bytes(int64(limit)))
	}
	r, err := e.Open()
	if err != nil {
		return nil, fmt.Errorf("archive entry %s: %w", text.Quote(e.Name), err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, int64(limit)))
	if err != nil {
		return nil, fmt.Errorf("archive entry %s: %w", text.Quote(e.Name), err)
	}
	return data, nil
}

// title is the name of the storage's entry.
func title(s storage) string { return text.Quote(path.Join("data", s.key)) }

// extent finds the storage's entry, which must lie in the file as it is.
func (a *archive) extent(s storage) (start, size int64, err error) {
	z := a.entries[path.Join("data", s.key)]
	if z == nil {
		return 0, 0, errors.New("is not in the archive")
	}
	if z.Method != zip.Store || z.CompressedSize64 != z.UncompressedSize64 {
		return 0, 0, errors.New("is compressed, which torch.save never does")
	}
	if start, err = z.DataOffset(); err != nil {
		return 0, 0, fmt.Errorf("cannot be found: %w", err)
	}
	if n := z.UncompressedSize64; start < 0 || n > uint64(a.size) || start > a.size-int64(n) {
		return 0, 0, errors.New("lies beyond the end of the file")
	}
	return start, int64(z.UncompressedSize64), nil
}

// place finds the bytes of a tensor.
func (a *archive) place(t pickled) (format.Entry, error) {
	e := format.Entry{Info: tensor.Info{Name: t.name, DType: t.dtype, Shape: t.shape}}
	size, err := tensor.Size(t.dtype, t.shape)
	if err != nil {
		return e, err
	}
	if err := t.checkContiguous(); err != nil {
		return e, err
	}
	start, stored, err := a.extent(t.storage)
	if err != nil {
		return e, fmt.Errorf("its storage %s %w", title(t.storage), err)
	}
	// the pickle's number of elements may be of no size that can be
	if t.storage.elements < 0 || t.storage.elements > stored/t.storage.width() {
		return e, fmt.Errorf("its storage %s has %d bytes, but the pickle says %d elements of %d bytes",
			title(t.storage), stored, t.storage.elements, t.storage.width())
	}
	width, declared := t.dtype.Bytes(1), t.storage.elements*t.storage.width()
	if t.offset > math.MaxInt64/8/width || t.offset*width > declared || size > declared-t.offset*width {
		return e, fmt.Errorf("it needs %s from element %d of its storage %s on, which has %s", text.ExactBytes(size),
			t.offset, title(t.storage), text.ExactBytes(int64(declared)))
	}
	e.Offset = start + t.offset*width
	return e, nil
}

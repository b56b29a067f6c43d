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

// place finds the bytes of a tensor. Its storage's entry must lie in the file as it is.
func (a *archive) place(t pickled) (format.Entry, error) {
	e := format.Entry{Info: tensor.Info{Name: t.name, DType: t.dtype, Shape: t.shape}}
	size, err := tensor.Size(t.dtype, t.shape)
	if err != nil {
		return e, err
	}
	if err := t.checkContiguous(); err != nil {
		return e, err
	}
	name := path.Join("data", t.storage.key)
	z, its := a.entries[name], "its storage "+text.Quote(name)
	if z == nil {
		return e, fmt.Errorf("%s is not in the archive", its)
	}
	if z.Method != zip.Store || z.CompressedSize64 != z.UncompressedSize64 {
		return e, fmt.Errorf("%s is compressed, which torch.save never does", its)
	}
	start, err := z.DataOffset()
	if err != nil {
		return e, fmt.Errorf("%s cannot be found: %w", its, err)
	}
	if n := z.UncompressedSize64; start < 0 || n > uint64(a.size) || start > a.size-int64(n) {
		return e, fmt.Errorf("%s lies beyond the end of the file", its)
	}
	stored, elements, width := int64(z.UncompressedSize64), t.storage.elements, t.storage.width()
	if elements < 0 || elements > stored/width { // the pickle's number of elements may be of no size that can be
		return e, fmt.Errorf("%s has %d bytes, but the pickle says %d elements of %d bytes", its, stored, elements, width)
	}
	declared := elements * width
	width = t.dtype.Bytes(1)
	if t.offset > math.MaxInt64/8/width || t.offset*width > declared || size > declared-t.offset*width {
		return e, fmt.Errorf("it needs %s from element %d of %s on, which has %s", text.ExactBytes(size),
			t.offset, its, text.ExactBytes(declared))
	}
	e.Offset = start + t.offset*width
	return e, nil
}

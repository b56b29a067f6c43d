package torchbin

// The file of torch before 1.6, and of _use_new_zipfile_serialization=False since: five
// pickles one after the other (a magic number, a version, the sizes of C's types, the
// object, the keys of its storages), then each storage, its number of elements first.

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"dsmoe/convert/format"
	"dsmoe/text"
)

// magic is the opcodes of the number that such a file begins with, behind PROTO and FRAME.
const magic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."

// legacyVersion is the only version of the file.
const legacyVersion = int64(1001)

// isPickle reports whether a file that begins with head is a bare pickle.
func isPickle(head []byte) bool { return len(head) > 1 && head[0] == 0x80 && head[1] <= 5 }

// legacy maps the keys of storages to their bytes.
type legacy map[string]span

type span struct{ start, size int64 }

// title names the storage by its key.
func (l legacy) title(s storage) string { return text.Quote(s.key) }

// extent finds the storage.
func (l legacy) extent(s storage) (start, size int64, err error) {
	at, ok := l[s.key]
	if !ok {
		return 0, 0, errors.New("is not in the file")
	}
	return at.start, at.size, nil
}

// readLegacy reads the pickles and finds the storages. The file does not record the length of
// the pickles, so readLegacy takes more of the file until they end.
func readLegacy(f io.ReaderAt, size int64) (*state, storages, error) {
	most := min(size, maxPickle)
	for n := min(most, 1<<20); ; n = min(most, 8*n) {
		head := make([]byte, n)
		if _, err := f.ReadAt(head, 0); err != nil && err != io.EOF {
			return nil, nil, err
		}
		m := newMachine("pickle", head)
		s, keys, err := m.legacy()
		if n < most && errors.Is(err, errEndsEarly) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		found, err := findStorages(f, int64(m.at), size, keys, m.storages)
		return s, found, err
	}
}

// legacy runs the pickles of a file.
func (m *machine) legacy() (*state, []any, error) {
	at := bytes.Index(m.program[:min(32, len(m.program))], []byte(magic))
	if at < 0 {
		return nil, nil, m.plain()
	}
	m.at = at + len(magic)
	if version, err := m.next(); err != nil || version != legacyVersion {
		return nil, nil, cmp.Or(err, fmt.Errorf("pickle: version of the file is not %d", legacyVersion))
	}
	system, err := m.next()
	if err != nil {
		return nil, nil, err
	}
	if d, ok := system.(*dict); !ok || !d.has("little_endian", true) {
		return nil, nil, errors.New("pickle: was not written on a little-endian machine")
	}
	v, err := m.next()
	if err != nil {
		return nil, nil, err
	}
	s, err := m.state(v)
	if err != nil {
		return nil, nil, err
	}
	keys, err := m.next()
	list, ok := keys.(*list)
	if err != nil || !ok {
		return nil, nil, cmp.Or(err, errors.New("pickle: the keys of the storages are no list"))
	}
	return s, list.items, nil
}

// next runs the next pickle, which shares only the storages with earlier ones.
func (m *machine) next() (any, error) {
	m.memo = map[int]any{}
	return m.run()
}

// plain is the error for a pickle that torch.save did not write.
func (m *machine) plain() error {
	const is = "is a plain pickle, not written by torch.save"
	cause := is
	if _, err := m.run(); err != nil {
		if errors.Is(err, errEndsEarly) {
			return err
		}
		cause += ": " + err.Error()
		var known *format.Error
		if errors.As(err, &known) {
			cause = is + ": " + known.Cause
		}
	}
	return &format.Error{Cause: cause, Hint: hintSafe}
}

// has reports whether the dict has the key with the value.
func (d *dict) has(key string, value any) bool {
	for i, k := range d.keys {
		if k == key {
			return d.values[i] == value
		}
	}
	return false
}

// findStorages finds the storages that follow the pickles in the order of keys. Together
// they must be the rest of the file.
func findStorages(f io.ReaderAt, at, size int64, keys []any, known map[string]storage) (legacy, error) {
	found := legacy{}
	for _, k := range keys {
		key, _ := k.(string)
		s, ok := known[key]
		if _, twice := found[key]; !ok || twice {
			return nil, errors.New("pickle: the keys of the storages are not those that the tensors name")
		}
		var count [8]byte
		if _, err := f.ReadAt(count[:], at); err != nil {
			return nil, cutOff(s)
		}
		if n := int64(binary.LittleEndian.Uint64(count[:])); n != s.elements {
			return nil, fmt.Errorf("storage %s: has %d elements, but the pickle says %d", text.Quote(key), n, s.elements)
		}
		at += int64(len(count))
		n, ok := s.bytes()
		if !ok || n > size-at {
			return nil, cutOff(s)
		}
		found[key] = span{at, n}
		at += n
	}
	if at != size {
		return nil, fmt.Errorf("%d bytes too many: they follow the last storage", size-at)
	}
	return found, nil
}

// cutOff is the error for a file that ends before a storage does.
func cutOff(s storage) error {
	return &format.Error{Cause: fmt.Sprintf("file is cut off: storage %s of %d elements of %d bytes is not whole",
		text.Quote(s.key), s.elements, s.width()), Hint: hintDownload}
}

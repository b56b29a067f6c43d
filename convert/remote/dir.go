package remote

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/format"
	"dsmoe/convert/source"
	"dsmoe/model/digest"
	"dsmoe/text"
)

// dir is the directory below of an origin.
type dir struct {
	c     *Client
	o     origin
	below string // "", or ends in "/"

	mu     sync.Mutex
	files  map[string]*file
	listed []Entry // sorted by name
	all    bool    // there are no other files
	small  [64]smallBlock
	next   int // index in small of the block that is replaced
}

var _ source.Dir = (*dir)(nil)

// take adds the files of a listing that lie below.
func (d *dir) take(listed []Entry) {
	for _, e := range listed {
		if name, ok := strings.CutPrefix(e.Name, d.below); ok && filepath.IsLocal(filepath.FromSlash(name)) {
			d.listed = append(d.listed, Entry{name, e.Size, e.Identity})
		}
	}
	slices.SortFunc(d.listed, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
}

// Path is the URL of the file.
func (d *dir) Path(name string) string { return d.o.path(strings.TrimSuffix(d.below+name, "/")) }

// OnDisk returns false.
func (d *dir) OnDisk() bool { return false }

// List returns the names in a directory.
func (d *dir) List(below string) (names []string, err error) {
	if below != "" {
		below += "/"
	}
	for _, e := range d.listed {
		if rest, ok := strings.CutPrefix(e.Name, below); ok {
			name, _, _ := strings.Cut(rest, "/")
			names = append(names, name)
		}
	}
	if names == nil && below != "" {
		return nil, about(d.Path(below), missing())
	}
	return slices.Compact(names), nil
}

// file returns the file of that name. It must be listed, if all files are.
func (d *dir) file(name string) (*file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.files[name]; f != nil {
		return f, nil
	}
	i, ok := slices.BinarySearchFunc(d.listed, name,
		func(e Entry, name string) int { return strings.Compare(e.Name, name) })
	f := &file{dir: d, name: d.below + name, size: -1, unlike: rand.Text()}
	switch {
	case ok:
		f.size, f.listed = d.listed[i].Size, d.listed[i].Identity
	case d.all:
		return nil, about(d.Path(name), missing())
	}
	d.files[name] = f
	return f, nil
}

// Stat describes the file: a directory if files lie below it.
func (d *dir) Stat(name string) (fs.FileInfo, error) {
	f, err := d.file(name)
	if err != nil {
		if _, below := d.List(name); below == nil {
			return info{name: path.Base(name), mode: fs.ModeDir}, nil
		}
		return nil, err
	}
	if err := f.measure(); err != nil {
		return nil, err
	}
	return f.info(), nil
}

// Open opens the file to be read from its begin.
func (d *dir) Open(name string) (fs.File, error) {
	f, err := d.file(name)
	if err == nil {
		err = f.measure()
	}
	if err != nil {
		return nil, err
	}
	if f.Size() > maxKept {
		return &opened{f.info(), &stream{f: f, end: f.Size()}}, nil
	}
	data, err := d.c.kept(d.o, f.name,
		func() ([]byte, error) { return io.ReadAll(&stream{f: f, end: f.Size(), small: true}) })
	if err == nil && int64(len(data)) != f.Size() {
		err = about(f.Path(), final("is "+text.Bytes(int64(len(data)))+" in the cache, and "+text.Bytes(f.Size())+" long"))
	}
	if err != nil {
		return nil, err
	}
	return &opened{f.info(), io.NopCloser(bytes.NewReader(data))}, nil
}

// Data opens a weight file.
func (d *dir) Data(name string) (format.Data, error) {
	f, err := d.file(name)
	if err == nil {
		err = f.measure()
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// State names the bytes of a file: those that were listed or, without a listing that says so, those that
// the server has now.
func (d *dir) State(name string) (string, error) {
	f, err := d.file(name)
	if err != nil {
		return "", err
	}
	if f.listed == "" {
		if _, err := io.Copy(io.Discard, &stream{f: f, end: 1}); err != nil {
			return "", err
		}
	}
	return f.state(), nil
}

// Memory returns the bytes of memory that the files' first bytes take, and the small blocks at most.
func (d *dir) Memory() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := int64(len(d.small)) * 2 * smallRead
	for _, f := range d.files {
		f.reading.Lock()
		n += int64(cap(f.head))
		f.reading.Unlock()
	}
	return n
}

// CheckInside returns nil: a server has no links.
func (d *dir) CheckInside(string) error { return nil }

// info describes a file of a server.
type info struct {
	name string
	size int64
	mode fs.FileMode
}

// Name returns the name without directories.
func (i info) Name() string { return i.name }

// Size returns the bytes of the file.
func (i info) Size() int64 { return i.size }

// Mode returns ModeDir for a directory.
func (i info) Mode() fs.FileMode { return i.mode }

// ModTime returns zero: what tells a file from another is its State.
func (i info) ModTime() time.Time { return time.Time{} }

// IsDir reports whether it is a directory.
func (i info) IsDir() bool { return i.mode.IsDir() }

// Sys returns nil.
func (i info) Sys() any { return nil }

// opened is a file that is read from its begin.
type opened struct {
	info
	io.ReadCloser
}

// Stat describes the file.
func (o *opened) Stat() (fs.FileInfo, error) { return o.info, nil }

// file is a file of a server. Its first bytes, which hold a weight file's header, stay in memory.
type file struct {
	format.Unmapped
	dir    *dir
	name   string
	listed string // its identity in the listing; "" if it has none

	mu       sync.Mutex
	size     int64 // -1 until it is known
	answered bool  // identity comes from an answer
	identity string
	unlike   string // random: no other run's file has it

	reading sync.Mutex // held while head grows
	head    []byte
	whole   bool // head is not extended any more: it has the header

	ends []int64 // where tensors end, ascending
}

// Path is the URL of the file.
func (f *file) Path() string { return f.dir.o.path(f.name) }

// Size returns the bytes of the file.
func (f *file) Size() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.size
}

// Rest says that the header was read: what follows it are weights.
func (f *file) Rest() {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.whole = true
}

// TensorsEnd says where the file's tensors end. It is called before weights are read.
func (f *file) TensorsEnd(at []int64) { f.ends = slices.Sorted(slices.Values(at)) }

// Close ends the responses that are not read to their ends. The file remains usable.
func (f *file) Close() error {
	r := &f.dir.c.runs
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = slices.DeleteFunc(r.open, func(s *stream) bool {
		if s.f == f {
			s.Close()
		}
		return s.f == f
	})
	return nil
}

func (f *file) info() info {
	return info{name: path.Base(f.name), size: f.Size()}
}

// state names the file's bytes.
func (f *file) state() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.listed != "":
		return text.Quote(f.listed)
	case f.identity == "":
		return source.Unknown + f.unlike
	}
	return digest.Of([]byte(f.identity)) + " " + text.ExactBytes(f.size)
}

// seen compares an answer with those before it.
func (f *file) seen(p *part) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.size < 0 {
		p.size = f.size // of the listing
	}
	switch {
	case p.size < 0:
		return final("the server does not say how long the file is")
	case f.size >= 0 && p.size != f.size:
		return final("had " + text.Bytes(f.size) + ", and has " + text.Bytes(p.size) + " now: it was replaced")
	case f.answered && p.identity != f.identity:
		return final("was replaced since its header was read: its ETag is another")
	}
	f.size, f.identity, f.answered = p.size, p.identity, true
	return nil
}

// measure finds out the size. Without a listing that has it the first bytes are read.
func (f *file) measure() error {
	if f.Size() >= 0 {
		return nil
	}
	f.reading.Lock()
	defer f.reading.Unlock()
	return f.extend(1)
}

// The sizes of requests in bytes. firstHead saves the round trip that asks for the 8 bytes of a header's
// length: the header of a small model fits. A longer one is read on in steps of half of what was read.
const (
	firstHead = 64 << 10
	stepHead  = 32 << 10
	maxStep   = 1 << 20
	maxHead   = 128 << 20 // of the first bytes, in memory: the longest header of any format
	smallRead = 64 << 10  // of the blocks that serve reads of few bytes, such as of scales
	fewBytes  = smallRead / 2
	largeRead = 8 << 20 // of one connection; a longer range is divided among several
)

// extend reads on until the first n bytes are in memory.
func (f *file) extend(n int64) error {
	for have := int64(len(f.head)); have < n; have = int64(len(f.head)) {
		end := max(have+min(max(have/2, stepHead), maxStep), firstHead)
		if size := f.Size(); size >= 0 && end > size {
			end = size
		}
		more, err := f.dir.c.kept(f.dir.o, fmt.Sprintf("%s.%d-%d", f.name, have, end), func() ([]byte, error) {
			return io.ReadAll(&stream{f: f, at: have, end: end})
		})
		if err != nil {
			return err
		}
		f.head = append(f.head, more...)
		if int64(len(f.head)) == have {
			break // an empty file
		}
	}
	return nil
}

// ReadAt reads a range. Reads that follow the first bytes, as those of a header do, go through them.
func (f *file) ReadAt(dst []byte, offset int64) (int, error) {
	n := int(min(int64(len(dst)), max(f.Size()-offset, 0)))
	done, err := f.readHead(dst[:n], offset)
	if !done && err == nil {
		err = f.readRange(dst[:n], offset)
	}
	if err == nil && n < len(dst) {
		err = io.EOF
	}
	return n, err
}

// readHead reads from the first bytes. It reports whether the range is there.
func (f *file) readHead(dst []byte, offset int64) (done bool, err error) {
	f.reading.Lock()
	defer f.reading.Unlock()
	end := offset + int64(len(dst))
	if !f.whole && offset <= int64(len(f.head)) && end > int64(len(f.head)) && len(dst) <= firstHead && end <= maxHead {
		if err := f.extend(end); err != nil {
			return false, err
		}
	}
	if end <= int64(len(f.head)) {
		copy(dst, f.head[offset:])
		return true, nil
	}
	return false, nil
}

// readRange reads a range from the cache of weights, or from the server, over several connections if it
// is long.
func (f *file) readRange(dst []byte, offset int64) error {
	// Without an identity nothing tells this state of the file from another.
	if state := f.state(); f.dir.c.Cache != "" && (f.listed != "" || f.identity != "") {
		hash := digest.Of([]byte(f.Path() + "\n" + state))
		return f.readBlocks(filepath.Join(f.dir.c.Cache, strings.TrimPrefix(hash, "blake3:")), dst, offset)
	}
	if s := f.dir.c.takeRun(f, offset, int64(len(dst))); s != nil {
		return f.dir.c.readRun(s, dst)
	}
	if len(dst) <= fewBytes {
		return f.readSmall(dst, offset)
	}
	var g errgroup.Group
	for from := 0; from < len(dst); from += largeRead {
		run := dst[from:min(from+largeRead, len(dst))]
		g.Go(func() error {
			at := offset + int64(from)
			_, err := io.ReadFull(&stream{f: f, at: at, end: at + int64(len(run))}, run)
			return err
		})
	}
	return g.Wait()
}

// smallBlock is a run of bytes that was read.
type smallBlock struct {
	of   *file
	at   int64
	data []byte
}

// readSmall reads few bytes, and keeps those around them for the next reads.
func (f *file) readSmall(dst []byte, offset int64) error {
	end := offset + int64(len(dst))
	d := f.dir
	d.mu.Lock()
	for _, b := range d.small {
		if b.of == f && offset >= b.at && end <= b.at+int64(len(b.data)) {
			copy(dst, b.data[offset-b.at:])
			d.mu.Unlock()
			return nil
		}
	}
	d.mu.Unlock()
	b := smallBlock{of: f, at: offset &^ (smallRead - 1)}
	b.data = make([]byte, min((end+smallRead-1)&^(smallRead-1), f.Size())-b.at)
	if _, err := io.ReadFull(&stream{f: f, at: b.at, end: b.at + int64(len(b.data))}, b.data); err != nil {
		return err
	}
	copy(dst, b.data[offset-b.at:])
	d.mu.Lock()
	d.small[d.next], d.next = b, (d.next+1)%len(d.small)
	d.mu.Unlock()
	return nil
}

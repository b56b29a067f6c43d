//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"dsmoe/convert/remote/remotetest"
)

// Chunks of what is written to the store, in bytes. They end where the bytes before say so, and equal runs of bytes
// are so equal chunks wherever they lie. Each is kept once.
const (
	minChunk  = 8 << 10
	meanChunk = 8 << 10 // more than the smallest
	maxChunk  = 64 << 10
	maxKept   = 20 << 30 // of all chunks together
)

// chunks are the distinct chunks, in a file without a name.
type chunks struct {
	seed  maphash.Seed
	taken atomic.Int64 // bytes that were kept, equal ones each time

	mu     sync.RWMutex
	places []place // of the chunks, by their numbers
	byHash map[uint64][]uint32
	used   int64
	data   []byte // the file
}

// place is where a chunk lies in the file.
type place struct{ begin, end int64 }

// newChunks makes the file in a directory. Its blocks take room as they are written.
func newChunks(dir string) (*chunks, error) {
	f, err := os.CreateTemp(dir, "chunks-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	if err := f.Truncate(maxKept); err != nil {
		return nil, err
	}
	data, err := syscall.Mmap(int(f.Fd()), 0, maxKept, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return &chunks{seed: maphash.MakeSeed(), byHash: map[uint64][]uint32{}, data: data}, err
}

// gear are the random numbers of the hash that ends chunks.
var gear = func() (g [256]uint64) {
	for i := range g {
		g[i] = mix(uint64(i))
	}
	return g
}()

// cut returns the length of the first chunk of data.
func cut(data []byte) int {
	if len(data) <= minChunk {
		return len(data)
	}
	data = data[:min(len(data), maxChunk)]
	var h uint64
	for i := minChunk - 64; i < len(data); i++ { // 64 bytes decide the hash
		h = h<<1 + gear[data[i]]
		if h>>(64-13) == 0 && i >= minChunk { // meanChunk is 2^13
			return i
		}
	}
	return len(data)
}

// keep returns the numbers of the chunks of data.
func (c *chunks) keep(data []byte) (stored, error) {
	s := stored{of: c, size: int64(len(data))}
	c.taken.Add(s.size)
	for len(data) > 0 {
		chunk := data[:cut(data)]
		data = data[len(chunk):]
		id, err := c.id(chunk)
		if err != nil {
			return s, err
		}
		s.ids = append(s.ids, id)
	}
	s.ids = slices.Clip(s.ids)
	return s, nil
}

// id returns the number of a chunk, which becomes the next one if there is no equal chunk.
func (c *chunks) id(chunk []byte) (uint32, error) {
	h := maphash.Bytes(c.seed, chunk)
	c.mu.RLock()
	id, ok := c.find(h, chunk)
	c.mu.RUnlock()
	if ok {
		return id, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if id, ok := c.find(h, chunk); ok {
		return id, nil
	}
	p := place{c.used, c.used + int64(len(chunk))}
	if p.end > int64(len(c.data)) {
		return 0, fmt.Errorf("more than %d bytes of distinct chunks", len(c.data))
	}
	copy(c.data[p.begin:], chunk)
	id = uint32(len(c.places))
	c.used, c.places, c.byHash[h] = p.end, append(c.places, p), append(c.byHash[h], id)
	return id, nil
}

// find returns the chunk with these bytes.
func (c *chunks) find(h uint64, chunk []byte) (uint32, bool) {
	for _, id := range c.byHash[h] {
		if p := c.places[id]; bytes.Equal(c.data[p.begin:p.end], chunk) {
			return id, true
		}
	}
	return 0, false
}

// stored is a Blob of chunks.
type stored struct {
	of   *chunks
	ids  []uint32
	size int64
}

// Size returns the number of bytes.
func (s stored) Size() int64 { return s.size }

// ReadAt reads the bytes of the chunks.
func (s stored) ReadAt(dst []byte, at int64) (n int, err error) {
	s.of.mu.RLock()
	defer s.of.mu.RUnlock()
	for _, id := range s.ids {
		p := s.of.places[id]
		if size := p.end - p.begin; at >= size {
			at -= size
			continue
		}
		n += copy(dst[n:], s.of.data[p.begin+at:p.end])
		if at = 0; n == len(dst) {
			return n, nil
		}
	}
	return n, io.EOF
}

// joined is several blobs, one after the other.
type joined struct {
	blobs []remotetest.Blob
	ends  []int64
}

func join(blobs []remotetest.Blob) *joined {
	j, end := &joined{blobs: blobs}, int64(0)
	for _, b := range blobs {
		end += b.Size()
		j.ends = append(j.ends, end)
	}
	return j
}

// Size returns the number of bytes.
func (j *joined) Size() int64 {
	if len(j.ends) == 0 {
		return 0
	}
	return j.ends[len(j.ends)-1]
}

// ReadAt reads from the blobs that hold the range.
func (j *joined) ReadAt(dst []byte, at int64) (n int, err error) {
	for i := sort.Search(len(j.ends), func(i int) bool { return at < j.ends[i] }); n < len(dst); i++ {
		if i >= len(j.ends) {
			return n, io.EOF
		}
		begin, want := j.ends[i]-j.blobs[i].Size(), min(int64(len(dst)-n), j.ends[i]-at)
		got, err := j.blobs[i].ReadAt(dst[n:n+int(want)], at-begin)
		if n, at = n+got, at+int64(got); int64(got) < want {
			return n, err
		}
	}
	return n, nil
}

// objects are files that are blobs: a fs.FS, and a remotetest.Files whose written bytes are chunks.
type objects struct {
	chunks *chunks

	mu    sync.Mutex
	files map[string]remotetest.Blob
	dirs  map[string]bool // even without files
}

// Keep takes bytes in.
func (o *objects) Keep(data []byte) (remotetest.Blob, error) { return o.chunks.keep(data) }

// Range returns a part of a file.
func (o *objects) Range(name string, begin, end int64) (remotetest.Blob, error) {
	f, err := o.blob("copy", name)
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(f, begin, end-begin), nil
}

// Write gives the bytes of blobs a name.
func (o *objects) Write(name string, blobs ...remotetest.Blob) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.files[name] = join(blobs)
	return nil
}

// Remove takes a name away.
func (o *objects) Remove(name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.files, name)
	return nil
}

func (o *objects) blob(op, name string) (remotetest.Blob, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if b, ok := o.files[name]; ok {
		return b, nil
	}
	return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

// Open opens a file or a directory.
func (o *objects) Open(name string) (fs.File, error) {
	stat, err := o.Stat(name)
	if err != nil {
		return nil, err
	}
	if stat.IsDir() {
		return directory{stat}, nil
	}
	b, err := o.blob("open", name)
	if err != nil {
		return nil, err
	}
	return &opened{io.NewSectionReader(b, 0, b.Size()), stat}, nil
}

// Stat describes a file or a directory.
func (o *objects) Stat(name string) (fs.FileInfo, error) {
	if b, err := o.blob("stat", name); err == nil {
		return info{path.Base(name), b.Size(), 0o444}, nil
	}
	if entries, _ := o.ReadDir(name); len(entries) > 0 || o.dirs[name] {
		return info{path.Base(name), 0, fs.ModeDir | 0o555}, nil
	}
	return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

// ReadDir lists a directory.
func (o *objects) ReadDir(dir string) (entries []fs.DirEntry, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	below := map[string]info{}
	for name, b := range o.files {
		rest, ok := strings.CutPrefix(name, dir+"/")
		if dir == "." {
			rest, ok = name, true
		}
		if first, _, within := strings.Cut(rest, "/"); ok && within {
			below[first] = info{first, 0, fs.ModeDir | 0o555}
		} else if ok {
			below[first] = info{first, b.Size(), 0o444}
		}
	}
	for _, i := range below {
		entries = append(entries, fs.FileInfoToDirEntry(i))
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// directory is an open directory; ReadDir of objects lists it.
type directory struct{ stat fs.FileInfo }

// Stat describes the directory.
func (d directory) Stat() (fs.FileInfo, error) { return d.stat, nil }

// Read fails.
func (d directory) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.stat.Name(), Err: fs.ErrInvalid}
}

// Close does nothing.
func (d directory) Close() error { return nil }

// opened is an open file.
type opened struct {
	*io.SectionReader
	stat fs.FileInfo
}

// Stat describes the file.
func (f *opened) Stat() (fs.FileInfo, error) { return f.stat, nil }

// Close does nothing.
func (f *opened) Close() error { return nil }

// info describes a file.
type info struct {
	name string
	size int64
	mode fs.FileMode
}

// Name returns the name without directories.
func (i info) Name() string { return i.name }

// Size returns the number of bytes.
func (i info) Size() int64 { return i.size }

// Mode returns the kind of file.
func (i info) Mode() fs.FileMode { return i.mode }

// ModTime returns the same time for all files.
func (i info) ModTime() time.Time { return time.Unix(1_700_000_000, 0) }

// IsDir reports whether it is a directory.
func (i info) IsDir() bool { return i.mode.IsDir() }

// Sys returns nil.
func (i info) Sys() any { return nil }

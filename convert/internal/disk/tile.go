package disk

// Files of tiles. A file that is only read, or that other machines write to as well, is opened past the page cache
// where the system allows it: reading returns the bytes on the disk. A file that this process alone writes
// goes through the cache: tiles are read again from memory while the disk is still writing them.

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const (
	// Block is a multiple of every page size and file system block size for which tiles
	// bypass the cache. Only whole blocks do. A block shared by two tiles goes through the
	// cache in both, so that the two ways to the disk never meet in one block.
	Block = 64 << 10

	// sector is the alignment, in bytes, of memory that bypasses the cache.
	sector = 4 << 10
)

// TileFile is a file that is written and read in tiles.
type TileFile struct {
	*File
	direct  *File       // the same file, opened past the cache; nil if it is not, or the system has no such mode
	refused atomic.Bool // the system has the mode, but not for this file
	writing sync.Mutex  // held while a tile is written through the cache
}

// OpenTiles is Open for a file of tiles. A file that other machines write to, too, needs O_SYNC: what goes through the
// cache is then written at once, and alone. A network file system may otherwise write what it has of the rest of the
// page, which another machine has written since.
func (d *Disk) OpenTiles(path string, flag int) (*TileFile, error) {
	past := flag == os.O_RDONLY || flag&os.O_SYNC != 0
	if d.NoSync {
		flag &^= os.O_SYNC
	}
	f, err := d.Open(path, flag)
	if err != nil {
		return nil, err
	}
	t := &TileFile{File: f}
	direct := directFlag(f.file)
	if !past || direct == 0 {
		return t, nil
	}
	t.direct, err = d.Open(path, flag&^os.O_CREATE|direct)
	if err != nil && !refuses(err) {
		f.Close()
		return nil, err
	}
	return t, nil
}

// refuses reports whether an error means that the cache cannot be bypassed.
func refuses(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported)
}

// WriteTile writes a tile at an offset of the file. Through the cache one tile of a file is written at a time: other
// writers would spin on the system's lock. Then the disk begins to write the tile's whole blocks: the
// system alone would wait until memory is full of them.
func (f *TileFile) WriteTile(tile []byte, at int64) error {
	if f.direct != nil {
		return f.transfer(tile, at, (*File).WriteAt)
	}
	f.writing.Lock()
	_, err := f.WriteAt(tile, at)
	f.writing.Unlock()
	begin, end := (at+Block-1)&^(Block-1), (at+int64(len(tile)))&^(Block-1)
	if err == nil && begin < end && !f.disk.NoSync {
		f.startWriting(begin, end-begin)
	}
	return err
}

// ReadTile reads a tile at an offset of the file.
func (f *TileFile) ReadTile(tile []byte, at int64) error {
	return f.transfer(tile, at, (*File).ReadAt)
}

// transfer calls move past the cache for the whole blocks of a tile, and through the cache
// for its ends.
func (f *TileFile) transfer(tile []byte, at int64, move func(*File, []byte, int64) (int, error)) error {
	begin, end := int(-at&(Block-1)), len(tile)-int((at+int64(len(tile)))&(Block-1))
	if f.direct == nil || f.refused.Load() || begin >= end || uintptr(unsafe.Pointer(&tile[begin]))%sector != 0 {
		begin, end = len(tile), len(tile)
	} else {
		err := f.disk.ask("direct", f.Name())
		if err == nil {
			_, err = move(f.direct, tile[begin:end], at+int64(begin))
		}
		if refuses(err) {
			f.refused.Store(true)
			begin, end = len(tile), len(tile)
		} else if err != nil {
			return err
		}
	}
	if begin > 0 {
		if _, err := move(f.File, tile[:begin], at); err != nil {
			return err
		}
	}
	if end < len(tile) {
		if _, err := move(f.File, tile[end:], at+int64(end)); err != nil {
			return err
		}
	}
	return nil
}

// Close closes both handles of the file.
func (f *TileFile) Close() error {
	err := f.File.Close()
	if f.direct != nil {
		err = errors.Join(err, f.direct.Close())
	}
	return err
}

// Finish is Close for a written file.
func (f *TileFile) Finish() error {
	err := f.File.Finish()
	if f.direct != nil {
		err = errors.Join(err, f.direct.Finish())
	}
	return err
}

// TileMemory is room for one tile at a time.
type TileMemory []byte

// NewTileMemories makes count rooms for a tile of n bytes each, in large pages where the system has them: to read or write
// past the cache it looks up each page of the memory.
func NewTileMemories(count, n int) []TileMemory {
	size := (n + 2*sector - 1) &^ (sector - 1)
	b := make([]byte, count*size+sector)
	b = b[-uintptr(unsafe.Pointer(&b[0]))%sector:][:count*size]
	wantLargePages(b)
	all := make([]TileMemory, count)
	for i := range all {
		all[i] = b[i*size:][:size:size]
	}
	return all
}

// Tile returns room for the bytes from, …, to-1 of a file, aligned as in the file.
func (m TileMemory) Tile(from, to int64) []byte { return m[from%sector:][:to-from] }

// TileEnd returns the end of the tile that begins at from and has at most n bytes (n ≥ Block)
// of a tensor that ends at end: the tensor's end, or a multiple of Block.
func TileEnd(from, n, end int64) int64 {
	if from+n >= end {
		return end
	}
	return (from + n) &^ (Block - 1)
}

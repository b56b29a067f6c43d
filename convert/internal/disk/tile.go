package disk

// Files of tiles. Tiles go to the disk and come back past the page cache, where the
// system lets them: that saves a copy, and what is read again is what the disk holds.

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const (
	// Block is a multiple of every page size and file system block size for which tiles
	// pass the cache by. Only whole blocks do. A block that two tiles share goes through
	// the cache in both, so that the two ways to the disk never meet in one block.
	Block = 64 << 10

	// sector is what the address of memory must be a multiple of to pass the cache by.
	sector = 4 << 10
)

// TileFile is a file that is written and read in tiles.
type TileFile struct {
	*File
	direct  *File       // the same file, opened past the cache; nil where the system has no such thing
	refused atomic.Bool // the system has it, but not for this file
}

// OpenTiles is Open for a file of tiles.
func (d *Disk) OpenTiles(path string) (*TileFile, error) {
	return d.openTiles(path, os.O_RDWR|os.O_CREATE)
}

// OpenTilesToRead opens a file of tiles that is there and is not written.
func (d *Disk) OpenTilesToRead(path string) (*TileFile, error) {
	return d.openTiles(path, os.O_RDONLY)
}

func (d *Disk) openTiles(path string, flag int) (*TileFile, error) {
	f, err := d.openWith(path, flag)
	if err != nil {
		return nil, err
	}
	t := &TileFile{File: f}
	direct := directFlag(f.file)
	if direct == 0 {
		return t, nil
	}
	t.direct, err = d.openWith(path, flag&^os.O_CREATE|direct)
	if err != nil && !refuses(err) {
		f.Close()
		return nil, err
	}
	return t, nil
}

// refuses says whether an error means that the cache cannot be passed by.
func refuses(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported)
}

// WriteTile writes a tile to its place in the file.
func (f *TileFile) WriteTile(tile []byte, at int64) error {
	return f.transfer(tile, at, (*File).WriteAt)
}

// ReadTile reads a tile from its place in the file.
func (f *TileFile) ReadTile(tile []byte, at int64) error {
	return f.transfer(tile, at, (*File).ReadAt)
}

// transfer calls by for the whole blocks of a tile past the cache, and for the rest
// through it.
func (f *TileFile) transfer(tile []byte, at int64, by func(*File, []byte, int64) (int, error)) error {
	begin, end := f.wholeBlocks(tile, at)
	if begin < end {
		err := f.disk.ask("direct", f.Name())
		if err == nil {
			_, err = by(f.direct, tile[begin:end], at+int64(begin))
		}
		if refuses(err) {
			f.refused.Store(true)
			begin, end = len(tile), len(tile)
		} else if err != nil {
			return err
		}
	}
	if begin > 0 {
		if _, err := by(f.File, tile[:begin], at); err != nil {
			return err
		}
	}
	if end < len(tile) {
		if _, err := by(f.File, tile[end:], at+int64(end)); err != nil {
			return err
		}
	}
	return nil
}

// wholeBlocks returns which bytes of a tile can pass the cache by: all between
// begin and end, if begin is the smaller.
func (f *TileFile) wholeBlocks(tile []byte, at int64) (begin, end int) {
	begin, end = int(-at&(Block-1)), len(tile)-int((at+int64(len(tile)))&(Block-1))
	if f.direct == nil || f.refused.Load() || begin >= end || uintptr(unsafe.Pointer(&tile[begin]))%sector != 0 {
		return len(tile), len(tile)
	}
	return begin, end
}

// Close closes the file however it was opened.
func (f *TileFile) Close() error {
	err := f.File.Close()
	if f.direct != nil {
		err = errors.Join(err, f.direct.Close())
	}
	return err
}

// Finish is Close for a file that was written.
func (f *TileFile) Finish() error {
	err := f.File.Finish()
	if f.direct != nil {
		err = errors.Join(err, f.direct.Finish())
	}
	return err
}

// TileMemory is room for one tile at a time.
type TileMemory []byte

// NewTileMemory makes room for n bytes.
func NewTileMemory(n int) TileMemory {
	b := make([]byte, n+2*sector)
	return b[-uintptr(unsafe.Pointer(&b[0]))%sector:]
}

// Tile returns room for the bytes from, …, to-1 of a file, aligned as they are there.
func (m TileMemory) Tile(from, to int64) []byte { return m[from%sector:][:to-from] }

// TileEnd returns where in a file the tile ends that begins at from and has at most
// n bytes, at least a block, of a tensor that ends at end: there, or between blocks.
func TileEnd(from, n, end int64) int64 {
	if from+n >= end {
		return end
	}
	return (from + n) &^ (Block - 1)
}

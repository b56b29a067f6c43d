package convert

// Tiles go to the disk and come back past the page cache, where the system lets
// them: that saves the copy, and a proof reads what the disk holds.

import (
	"errors"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const (
	// block is a multiple of all pages and file system blocks that a file has. Only
	// whole blocks pass the cache by: one that two tensors share goes through it, so
	// that none ever goes both ways.
	block = 64 << 10

	// sector is what memory is aligned to for that.
	sector = 4 << 10
)

// tileFile is a file that is written and read in tiles.
type tileFile struct {
	*diskFile
	direct  *diskFile   // the same file past the cache; nil where the system has no such thing
	refused atomic.Bool // the system has it, but not for this file
}

// openTiles is open for a file of tiles.
func (d *disk) openTiles(path string) (*tileFile, error) {
	f, err := d.open(path)
	if err != nil {
		return nil, err
	}
	w := &tileFile{diskFile: f}
	flag := directFlag(f.File)
	if flag == 0 {
		return w, nil
	}
	w.direct, err = d.openWith(path, flag)
	if err != nil && !refuses(err) {
		f.Close()
		return nil, err
	}
	return w, nil
}

// refuses says whether an error means that the cache cannot be passed by.
func refuses(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported)
}

// writeTile writes a tile to its place in the file.
func (f *tileFile) writeTile(tile []byte, at int64) error {
	return f.move(tile, at, (*diskFile).WriteAt)
}

// readTile reads a tile from its place in the file.
func (f *tileFile) readTile(tile []byte, at int64) error {
	return f.move(tile, at, (*diskFile).ReadAt)
}

// move moves the whole blocks of a tile past the cache and the rest through it.
func (f *tileFile) move(tile []byte, at int64, by func(*diskFile, []byte, int64) (int, error)) error {
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
		if _, err := by(f.diskFile, tile[:begin], at); err != nil {
			return err
		}
	}
	if end < len(tile) {
		if _, err := by(f.diskFile, tile[end:], at+int64(end)); err != nil {
			return err
		}
	}
	return nil
}

// wholeBlocks returns which bytes of a tile can pass the cache by: all between
// begin and end, if begin is the smaller.
func (f *tileFile) wholeBlocks(tile []byte, at int64) (begin, end int) {
	begin, end = int(-at&(block-1)), len(tile)-int((at+int64(len(tile)))&(block-1))
	if f.direct == nil || f.refused.Load() || begin >= end || uintptr(unsafe.Pointer(&tile[begin]))%sector != 0 {
		return len(tile), len(tile)
	}
	return begin, end
}

// Close closes the file however it was opened.
func (f *tileFile) Close() error {
	err := f.diskFile.Close()
	if f.direct != nil {
		err = errors.Join(err, f.direct.Close())
	}
	return err
}

// close is Close for a file that was written.
func (f *tileFile) close() error {
	err := f.diskFile.close()
	if f.direct != nil {
		err = errors.Join(err, f.direct.close())
	}
	return err
}

// tileMemory is room for one tile at a time.
type tileMemory []byte

// newTileMemory makes room for n bytes.
func newTileMemory(n int) tileMemory {
	b := make([]byte, n+2*sector)
	return b[-uintptr(unsafe.Pointer(&b[0]))%sector:]
}

// tile returns room for the bytes from, …, to-1 of a file, aligned as they are there.
func (m tileMemory) tile(from, to int64) []byte { return m[from%sector:][:to-from] }

// tileEnd returns where in a file the tile ends that begins at from and has at most
// n bytes, at least a block, of a tensor that ends at end: there, or between blocks.
func tileEnd(from, n, end int64) int64 {
	if from+n >= end {
		return end
	}
	return (from + n) &^ (block - 1)
}

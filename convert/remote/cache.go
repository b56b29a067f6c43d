package remote

// What is kept on the disk: listings, configs and headers of a commit of the hub, in the user's cache
// directory; and weights, if the user says where.

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"dsmoe/model/digest"
	"dsmoe/text"
)

// maxKept is the most bytes of a file that is read whole into memory, and kept.
const maxKept = 64 << 20

// DefaultHeaders is where headers are kept unless the system has no place for a user's caches.
func DefaultHeaders() string {
	user, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(user, "dsmoe")
}

// kept returns what read reads of a commit of the hub, from the disk if it was read before; other origins are read
// each time. A file there begins with the hash of the rest. What cannot be kept is read again the next time.
func (c *Client) kept(o origin, name string, read func() ([]byte, error)) ([]byte, error) {
	h, ok := o.(*hub)
	if !ok || c.Headers == "" || !filepath.IsLocal(name) {
		return read()
	}
	path := filepath.Join(c.Headers, strings.ReplaceAll(h.endpoint.Host, ":", "_"),
		strings.Replace(h.name, "/", "--", 1), h.commit, filepath.FromSlash(name))
	if text, err := os.ReadFile(path); err == nil {
		hash, data, _ := strings.Cut(string(text), "\n")
		if digest.Of([]byte(data)) == hash {
			return []byte(data), nil
		}
	}
	data, err := read()
	if err == nil {
		_ = publish(path, func(w io.Writer) error {
			_, err := io.WriteString(w, digest.Of(data)+"\n"+string(data))
			return err
		})
	}
	return data, err
}

// publish makes a file under a name of its own and renames it, so that no reader sees a part of it.
func publish(path string, fill func(w io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".partial-")
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// cacheBlock is the bytes of a file of the cache of weights.
const cacheBlock = 8 << 20

// readBlocks reads a range through the cache of weights in the directory at.
func (f *file) readBlocks(at string, dst []byte, offset int64) error {
	for len(dst) > 0 {
		i := offset / cacheBlock
		path := filepath.Join(at, strconv.FormatInt(i, 10))
		_, err, _ := f.dir.c.flights.Do(path, func() (any, error) { return nil, f.cacheBlock(path, i*cacheBlock) })
		if err != nil {
			return about(f.Path(), err)
		}
		n := min(int64(len(dst)), (i+1)*cacheBlock-offset)
		block, err := os.Open(path)
		if err == nil {
			_, err = block.ReadAt(dst[:n], offset-i*cacheBlock)
			block.Close()
		}
		if err != nil {
			return about(path, err)
		}
		dst, offset = dst[n:], offset+n
	}
	return nil
}

// cacheBlock has the block of a file from offset on in the cache, with its hash at the end. A block that an
// earlier run kept is compared with its hash once.
func (f *file) cacheBlock(path string, offset int64) error {
	end := min(offset+cacheBlock, f.Size())
	if _, known := f.dir.c.blocks.Load(path); known {
		return nil
	}
	if !isBlock(path, end-offset) {
		err := publish(path, func(w io.Writer) error {
			hash, _, err := digest.Copy(f.dir.c.Context, w, &stream{f: f, at: offset, end: end}, func(int64) {})
			if err == nil {
				_, err = io.WriteString(w, hash)
			}
			return err
		})
		if err != nil {
			return &failure{cause: "cannot be kept in --cache: " + text.Line(err.Error())}
		}
	}
	f.dir.c.blocks.Store(path, nil)
	return nil
}

// isBlock reports whether path holds n bytes and their hash.
func isBlock(path string, n int64) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	hash, _, err := digest.Copy(context.Background(), io.Discard, io.LimitReader(file, n), func(int64) {})
	if err != nil {
		return false
	}
	end, err := io.ReadAll(file)
	return err == nil && string(end) == hash
}

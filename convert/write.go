package convert

// Writing a checkpoint directory: everything under a temporary name beside the
// target, synced, the index last, then one rename.

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// Output is a checkpoint to be written.
type Output struct {
	Tensors  []tensor.Info     // in the order of the model; decides the shards and the order of the index
	Config   []byte            // config.json, as it is to be written
	Metadata map[string]string // of every weight file; nil is safetensors.DefaultMetadata

	// Fill writes the bytes of t that begin at offset into dst. Several calls run
	// at once, for different parts; dst holds whole elements. An error ends Write.
	Fill func(ctx context.Context, t tensor.Info, dst []byte, offset int64) error
}

// WriteOptions are the options of Write; the zero value is the default.
type WriteOptions struct {
	MaxShardBytes int64             // tensor bytes of one file; 0 is 5 GB, as in transformers
	TileBytes     int               // bytes given to Fill at once; 0 is 4 MiB
	Workers       int               // calls of Fill at once; 0 is GOMAXPROCS
	Progress      func(bytes int64) // told of tensor bytes as they are written, one call at a time
}

func (o WriteOptions) withDefaults() WriteOptions {
	if o.MaxShardBytes <= 0 {
		o.MaxShardBytes = 5_000_000_000
	}
	if o.TileBytes <= 0 {
		o.TileBytes = 4 << 20
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	return o
}

// Write writes a checkpoint directory in the Hugging Face layout: config.json and
// model.safetensors, or shards with an index. dst must not exist or be an empty
// directory. All files are written into a hidden directory beside dst and synced;
// its rename to dst is the last step, so dst is complete or absent. On an error,
// or when ctx ends, nothing is left behind. Memory is Workers tiles, however large
// the tensors are; the bytes written depend on out and MaxShardBytes alone.
func Write(ctx context.Context, dst string, out Output, opts WriteOptions) error {
	err := write(ctx, dst, out, opts.withDefaults())
	if err != nil {
		return fmt.Errorf("%s: %w", safetensors.Quote(dst), err)
	}
	return nil
}

func write(ctx context.Context, dst string, out Output, opts WriteOptions) error {
	shards, err := planShards(out, opts.MaxShardBytes)
	if err != nil {
		return err
	}
	dst, err = filepath.Abs(dst)
	if err != nil {
		return err
	}
	if err := checkTarget(dst); err != nil {
		return err
	}
	if err := checkSpace(filepath.Dir(dst), shards); err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+".partial-"+rand.Text()[:8])
	if err := os.Mkdir(temp, 0o777); err != nil {
		return err
	}
	defer os.RemoveAll(temp) // after the rename there is nothing to remove
	w := &writer{dir: temp, out: out, opts: opts}
	if err := w.writeAll(ctx, shards); err != nil {
		return err
	}
	return publish(temp, dst)
}

// checkTarget refuses a target that holds anything.
func checkTarget(dst string) error {
	stat, err := os.Lstat(dst)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(dst)); errors.Is(err, fs.ErrNotExist) {
			return errors.New("the directory to write it in does not exist")
		}
		return nil
	case err != nil:
		return err
	case !stat.IsDir():
		return errors.New("exists and is not an empty directory")
	}
	entries, err := os.ReadDir(dst)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("directory is not empty: it holds %s", safetensors.Quote(entries[0].Name()))
	}
	return nil
}

// checkSpace compares the size of the output with the free space of its disk.
func checkSpace(dir string, shards []shard) error {
	need := int64(0)
	for _, s := range shards {
		need += s.layout.Size()
	}
	free, ok := freeSpace(dir)
	if ok && free < uint64(need) {
		return fmt.Errorf("needs %d bytes of disk, but only %d are free", need, free)
	}
	return nil
}

// publish gives the finished directory its name. An empty directory in its place
// is removed first; anything else that appeared meanwhile makes the rename fail.
func publish(temp, dst string) error {
	if err := syncDir(temp); err != nil {
		return err
	}
	if stat, err := os.Lstat(dst); err == nil && stat.IsDir() {
		if err := os.Remove(dst); err != nil {
			return err
		}
	}
	if err := os.Rename(temp, dst); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dst))
}

// writer writes the files of one output into a directory.
type writer struct {
	dir  string
	out  Output
	opts WriteOptions

	mu      sync.Mutex // serialises Progress
	buffers sync.Pool
}

func (w *writer) writeAll(ctx context.Context, shards []shard) error {
	for _, s := range shards {
		if err := w.writeShard(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := w.writeFile(configName, w.out.Config); err != nil {
		return err
	}
	if len(shards) == 1 {
		return ctx.Err()
	}
	if err := w.writeFile(indexName, indexOf(w.out.Tensors, shards)); err != nil {
		return err
	}
	return ctx.Err()
}

func (w *writer) writeFile(name string, data []byte) error {
	f, err := os.OpenFile(filepath.Join(w.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func (w *writer) writeShard(ctx context.Context, s shard) error {
	f, err := os.OpenFile(filepath.Join(w.dir, s.name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	err = w.fillShard(ctx, f, s.layout)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// fillShard writes the header, then all tiles, several at once: each has its own
// place in the file.
func (w *writer) fillShard(ctx context.Context, f *os.File, l *safetensors.Layout) error {
	if err := f.Truncate(l.Size()); err != nil {
		return err
	}
	if _, err := f.WriteAt(l.Header(), 0); err != nil {
		return err
	}
	g, running := errgroup.WithContext(ctx)
	g.SetLimit(w.opts.Workers)
	for i := range l.Len() {
		info, start := l.Info(i), l.Offset(i)
		size, step := info.Bytes(), w.tileBytes(info.DType)
		for offset := int64(0); offset < size && running.Err() == nil; offset += step {
			g.Go(func() error { return w.fillTile(running, f, info, start, offset, min(step, size-offset)) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// tileBytes rounds the tile down to whole elements (and to whole bytes, where
// those are smaller).
func (w *writer) tileBytes(d tensor.DType) int64 {
	unit := d.Bits() // bytes of eight elements
	if unit%8 == 0 {
		unit /= 8
	}
	return int64(max(w.opts.TileBytes/unit, 1) * unit)
}

// fillTile fills n bytes of a tensor, from offset on, and writes them.
func (w *writer) fillTile(ctx context.Context, f *os.File, info tensor.Info, start, offset, n int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	buf, _ := w.buffers.Get().(*[]byte)
	if buf == nil || int64(cap(*buf)) < n {
		buf = new(make([]byte, max(n, int64(w.opts.TileBytes))))
	}
	defer w.buffers.Put(buf)
	tile := (*buf)[:n:n]
	if err := w.out.Fill(ctx, info, tile, offset); err != nil {
		return fmt.Errorf("tensor %s: byte %d: %w", safetensors.Quote(info.Name), offset, err)
	}
	if _, err := f.WriteAt(tile, start+offset); err != nil {
		return err
	}
	if w.opts.Progress != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.opts.Progress(n)
	}
	return nil
}

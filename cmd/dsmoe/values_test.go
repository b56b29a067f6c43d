package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/checkpoint"
	"dsmoe/inspect"
	"dsmoe/inspect/stats"
)

// TestDamagedArchive: a byte of a .bin file that makes another number of a weight is found
// by the archive's checksum alone.
func TestDamagedArchive(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "fixtures", "torch-bin", "checkpoint"))))
	c, err := checkpoint.Open(dir)
	require.NoError(t, err)
	const name = "model.embed_tokens.weight"
	file, offset, err := c.Place(name)
	require.NoError(t, err)
	path := filepath.Join(dir, c.Inventory.Files[file].Name)
	require.NoError(t, c.Close())
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[offset] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o666))
	status, _, _ := dsmoe(t.Context(), "inspect", "audit", dir)
	assert.Equal(t, cli.ExitYes, status)
	status, stdout, _ := dsmoe(t.Context(), "inspect", "audit", "--values", dir)
	assert.Equal(t, cli.ExitNo, status)
	assert.Regexp(t, `: 1 problem\n  broken: pytorch_model-0000\d-of-00002.bin: `+name+`: archive entry pytorch_model-0000\d-of-00002/data/\d+: CRC-32 is [0-9a-f]{8}, but the archive says [0-9a-f]{8}\n    hint: bytes are damaged`, stdout)
}

// TestUnreadableChecksums: an archive whose directory points at no entry, in a place that no
// tensor needs, is not passed over.
func TestUnreadableChecksums(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "fixtures", "torch-bin", "checkpoint"))))
	const name = "pytorch_model-00002-of-00002"
	path := filepath.Join(dir, name+".bin")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	const header = 30 // bytes of a local header before the name
	data[bytes.Index(data, []byte(name+"/.format_version"))-header] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o666))
	status, stdout, _ := dsmoe(t.Context(), "inspect", "audit", "--values", dir)
	assert.Equal(t, cli.ExitNo, status)
	assert.Contains(t, stdout, "broken: "+name+".bin: its checksums cannot be read: zip: not a valid zip file")
}

// TestShortenedFile: bytes that are gone since the headers were read are findings.
func TestShortenedFile(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "fixtures", "v1-dense", "checkpoint"))))
	c, err := checkpoint.Opener{}.Examine(dir)
	require.NoError(t, err)
	defer c.Close()
	in, err := inspected(c.Inventory)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(filepath.Join(dir, in.Files[0].Name), in.Files[0].Size-100))
	a, err := stats.AuditValues(t.Context(), in, stats.Values{Reader: c, ReadFile: c.ReadFile})
	require.NoError(t, err)
	assert.Positive(t, a.Problems)
	for _, f := range a.Findings {
		assert.Equal(t, inspect.Broken, f.Kind)
		assert.Contains(t, f.Cause, "cannot be read: ")
		assert.Contains(t, f.Cause, "unexpected EOF")
	}
}

// BenchmarkAuditValues reads a checkpoint of 350 MB that is in the page cache, on one core
// and on all, and reports GB/s per core, beside what copying memory reaches in the same
// run: a copy moves each byte twice.
func BenchmarkAuditValues(b *testing.B) {
	c := benchmarkCheckpoint(b)
	in, err := inspected(c.Inventory)
	require.NoError(b, err)
	copied := copyBandwidth()
	for _, threads := range []int{1, runtime.NumCPU()} {
		b.Run(threadsName(threads), func(b *testing.B) {
			for b.Loop() {
				a, err := stats.AuditValues(b.Context(), in, stats.Values{Reader: c, ReadFile: c.ReadFile, Threads: threads})
				require.NoError(b, err)
				require.True(b, a.Clean)
			}
			reportPerCore(b, c, threads, copied)
		})
	}
}

func threadsName(threads int) string { return fmt.Sprintf("threads=%d", threads) }

// benchmarkCheckpoint makes a checkpoint of 350 MB in BF16.
func benchmarkCheckpoint(b *testing.B) *checkpoint.Checkpoint {
	dir := filepath.Join(b.TempDir(), "ckpt")
	config := filepath.Join(b.TempDir(), "config.json")
	require.NoError(b, os.WriteFile(config, []byte(`{"model_type":"deepseek","torch_dtype":"bfloat16","vocab_size":8192,"hidden_size":2048,"intermediate_size":4096,
		"moe_intermediate_size":1408,"num_hidden_layers":1,"num_attention_heads":16,"num_key_value_heads":16,"n_shared_experts":2,"n_routed_experts":8,"num_experts_per_tok":2}`), 0o666))
	status, _, stderr := dsmoe(b.Context(), "synth", config, dir)
	require.Equal(b, cli.ExitYes, status, stderr)
	c, err := checkpoint.Opener{}.Examine(dir)
	require.NoError(b, err)
	b.Cleanup(func() { c.Close() })
	return c
}

// reportPerCore reports what each core read in a second, and what copying memory reaches.
func reportPerCore(b *testing.B, c *checkpoint.Checkpoint, threads int, copied float64) {
	perCore := float64(c.Inventory.Files[0].Bytes) * float64(b.N) / b.Elapsed().Seconds() / 1e9 / float64(threads)
	b.ReportMetric(perCore, "GB/s/core")
	b.ReportMetric(copied, "GB/s-of-copy")
}

// copyBandwidth returns the GB/s at which one core copies memory.
func copyBandwidth() float64 {
	src, dst := make([]byte, 256<<20), make([]byte, 256<<20)
	for i := range src { // pages of their own
		src[i], dst[i] = byte(i), 1
	}
	const rounds = 8
	start := time.Now()
	for range rounds {
		copy(dst, src)
	}
	return rounds * float64(len(src)) / time.Since(start).Seconds() / 1e9
}

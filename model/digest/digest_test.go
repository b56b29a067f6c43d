package digest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/blake3"
	other "lukechampine.com/blake3"
)

// hashes returns a hash of each kind that New chooses from.
func hashes() []Hash { return []Hash{whole{blake3.New()}, &wide{rest: make([]byte, 0, atOnce)}} }

// TestKnownNames: the reference's test vectors; its input is 0, 1, …, 250, 0, 1, ….
func TestKnownNames(t *testing.T) {
	for n, want := range map[int]string{
		0:    "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
		1:    "blake3:2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
		1023: "blake3:10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
		1024: "blake3:42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
		1025: "blake3:d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
	} {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i % 251)
		}
		require.Equal(t, want, Of(data), n)
		for _, h := range hashes() {
			for _, b := range data {
				h.Write([]byte{b})
			}
			require.Equal(t, want, h.Name(), n)
		}
		var copied bytes.Buffer
		progress := int64(0)
		name, read, err := Copy(t.Context(), &copied, strings.NewReader(string(data)), func(n int64) { progress += n })
		require.NoError(t, err)
		require.EqualValues(t, n, read)
		require.EqualValues(t, n, progress)
		require.Equal(t, string(data), copied.String())
		require.Equal(t, want, name)
		done, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err = Copy(done, io.Discard, strings.NewReader(string(data)), func(int64) {})
		require.ErrorIs(t, err, context.Canceled)
	}
}

// TestPieces: messages of many lengths, written in pieces of any size, have the names that another library gives them,
// and so do their beginnings.
func TestPieces(t *testing.T) {
	data := make([]byte, 9*atOnce+5)
	for i := range data {
		data[i] = byte(i*i>>8 ^ i%251)
	}
	want := func(data []byte) string { return fmt.Sprintf("blake3:%x", other.Sum256(data)) }
	list := hashes()
	for _, n := range []int{0, 1, 1024, 1025, 2048, 5000, atOnce/2 - 1, atOnce / 2, atOnce/2 + 1, atOnce - 1, atOnce, atOnce + 1,
		atOnce + 1024, 2*atOnce - 1, 2 * atOnce, 3*atOnce + 7, 4 * atOnce, 8 * atOnce, 9 * atOnce, len(data)} {
		for _, size := range []int{100, 1000, 1024, atOnce / 2, atOnce, atOnce + 1, 3 * atOnce, len(data)} {
			for _, h := range list {
				h.Reset()
				for at := 0; at < n; at += size {
					end := min(at+size, n)
					h.Write(data[at:end])
					if at == 0 || at+size >= n/2 && at < n/2 {
						require.Equal(t, want(data[:end]), h.Name())
					}
				}
				require.Equal(t, want(data[:n]), h.Name(), "%d bytes in pieces of %d", n, size)
			}
			require.Equal(t, want(data[:n]), Of(data[:n]))
		}
	}
}

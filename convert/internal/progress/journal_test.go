package progress

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/disk"
)

// journalOf opens a journal that holds data.
func journalOf(t testing.TB, path, data string) *Journal {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(data), 0o600))
	f, err := (&disk.Disk{NoSync: true}).Open(path, disk.ReadWrite)
	require.NoError(t, err)
	return &Journal{f: f}
}

// linesOf reads a journal.
func linesOf(t testing.TB, j *Journal) (head *Head, records []Record) {
	t.Helper()
	head, err := j.Read(func(r Record) { records = append(records, r) })
	require.NoError(t, err)
	return head, records
}

// sealed is the text of a journal of these lines.
func sealed(payloads ...string) (s string) {
	var b []byte
	for _, p := range payloads {
		b = seal(b, []byte(p))
	}
	return string(b)
}

const (
	someHead   = `{"format":"dsmoe.journal/3","plan":"p","key":"k"}`
	someRecord = `{"t":3,"n":4096,"losses":[{"overflow":1,"flushed":2}],"proof":{"hash":"blake3:00","compared":true}}`
)

// TestJournalLines: what a journal is trusted for are the whole lines before the first
// that is not one.
func TestJournalLines(t *testing.T) {
	t.Parallel()
	first, second := sealed(someHead), sealed(someRecord)
	for name, c := range map[string]struct {
		data    string
		head    bool
		records int
	}{
		"empty":              {"", false, 0},
		"head":               {first, true, 0},
		"lines":              {first + second + second, true, 2},
		"no line break":      {first + second[:len(second)-1], true, 0},
		"cut in the middle":  {first + second[:20], true, 0},
		"cut head":           {first[:20], false, 0},
		"checksum":           {first + "00000000" + second[8:] + second, true, 0},
		"head's checksum":    {"00000000" + first[8:] + second, false, 0},
		"another format":     {sealed(`{"format":"dsmoe.journal/1","plan":"p","key":"k"}`) + second, false, 0},
		"head is no object":  {sealed("[]") + second, false, 0},
		"line is no object":  {first + sealed("[]") + second, true, 0},
		"zeros behind":       {first + second + "\x00\x00\x00\n", true, 1},
		"empty line between": {first + "\n" + second, true, 0},
	} {
		j := journalOf(t, filepath.Join(t.TempDir(), "journal"), c.data)
		head, records := linesOf(t, j)
		require.Equal(t, c.head, head != nil, name)
		require.Len(t, records, c.records, name)
		for _, r := range records {
			require.Equal(t, Record{Tensor: 3, Done: 4096, Lost: Losses{{Overflow: 1, Flushed: 2}}, Proof: &Proof{Hash: "blake3:00", Compared: true}}, r)
		}
		require.NoError(t, j.Close())
	}
}

// TestJournalIsOurs: a first line that a crash cut short is known by its begin; anything
// else is somebody's file.
func TestJournalIsOurs(t *testing.T) {
	t.Parallel()
	first := sealed(someHead)
	for data, want := range map[string]bool{
		"": true, "\x00\x00": true, first[:1]: true, first[:9]: true, first[:12]: true, first[:len(first)-1]: true, first: true,
		"my diary": false, "0123456": true, "01234567 {\"a\":1}": false, "01234567 []": false, "\x00x": false,
	} {
		j := journalOf(t, filepath.Join(t.TempDir(), "journal"), data)
		require.Equal(t, want, j.IsOurs(), "%q", data)
		require.NoError(t, j.Close())
	}
}

// FuzzJournal: whatever a journal holds, a line that is added to what could be read is
// read behind that.
func FuzzJournal(f *testing.F) {
	first, second := sealed(someHead), sealed(someRecord)
	for _, data := range []string{"", first, first + second, first + second[:9], first + "x" + second, second, "00000000 {}\n"} {
		f.Add(data)
	}
	path := filepath.Join(f.TempDir(), "journal")
	f.Fuzz(func(t *testing.T, data string) {
		j := journalOf(t, path, data)
		defer j.Close()
		head, before := linesOf(t, j)
		require.LessOrEqual(t, j.end, int64(len(data)))
		if head == nil {
			return
		}
		added := Record{Tensor: 7, Done: 1}
		require.NoError(t, j.Append(added))
		again, after := linesOf(t, j)
		require.Equal(t, head, again)
		require.Equal(t, append(before, added), after)
	})
}

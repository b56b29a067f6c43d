package progress

// The journal of an unfinished output. Its lines can be trusted after a crash: the data
// that a line records was durable before the line was written.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
)

// Journal is an open, locked journal.
type Journal struct {
	f   *disk.File
	end int64 // offset of the next line
}

// Head is the first line. It names the output.
type Head struct {
	Format string `json:"format"` // Format
	Plan   string `json:"plan"`   // hash of the plan
	Key    string `json:"key"`    // state of the source: Source.Key

	// In the journal of a part:
	Options any               `json:"options,omitempty"` // of the plan
	Sources []plan.Source     `json:"sources,omitempty"` // of the plan
	States  map[string]string `json:"states,omitempty"`  // of the source: Source.States
	Files   map[string]string `json:"files,omitempty"`   // identities of the weight files that it writes to, by name
}

// Format is the format of journals.
const Format = "dsmoe.journal/3"

// HeadOf returns the head of the journal of a plan's output, from a source in the state key.
func HeadOf(p *plan.Plan, key string) Head { return Head{Format: Format, Plan: p.Hash, Key: key} }

// start begins the first line, behind its checksum.
const start = `{"format":"` + Format

// ErrBusy means that a run holds the journal, or has written to it since.
var ErrBusy = errors.New("another run is writing it")

// LockJournal opens the journal at path and locks it. If the file was removed before the
// lock was taken, LockJournal opens a new one.
func LockJournal(d *disk.Disk, path string) (*Journal, error) {
	for {
		f, err := d.Open(path, disk.ReadWrite)
		if err != nil {
			return nil, err
		}
		locked, err := f.TryLock()
		if err != nil || !locked {
			f.Close()
			if err == nil {
				err = ErrBusy
			}
			return nil, err
		}
		opened, errOpened := f.Stat()
		at, errAt := os.Lstat(path)
		if errOpened == nil && errAt == nil && os.SameFile(opened, at) {
			return &Journal{f: f}, nil
		}
		f.Close()
	}
}

// CreateJournal makes a journal at a path that is free; an error of fs.ErrExist if it is not.
func CreateJournal(d *disk.Disk, path string) (*Journal, error) {
	f, err := d.Open(path, disk.ReadWrite|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	return &Journal{f: f}, nil
}

// Close closes the journal and releases its lock.
func (j *Journal) Close() error { return j.f.Close() }

// HasRecords reports whether a journal has records.
func HasRecords(journal string) bool {
	stat, err := os.Lstat(journal)
	return err == nil && stat.Size() > 0
}

// Read hands every whole line to apply and returns the journal's head, nil without a whole
// head. The next Append cuts off the bytes behind the last whole line.
func (j *Journal) Read(apply func(Record)) (head *Head, err error) {
	head, j.end, err = ReadJournal(j.f, apply)
	return head, err
}

// ReadJournal is Read of a journal that is not locked; end is the offset behind the last whole line. Without apply it
// reads the head alone.
func ReadJournal(f io.ReaderAt, apply func(Record)) (head *Head, end int64, err error) {
	r := bufio.NewReader(io.NewSectionReader(f, 0, 1<<62))
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return head, end, nil
		}
		if err != nil {
			return nil, 0, err
		}
		payload, ok := unseal(line)
		if !ok {
			return head, end, nil
		}
		if head == nil {
			h := &Head{}
			if json.Unmarshal(payload, h) != nil || h.Format != Format {
				return nil, 0, nil
			}
			if head = h; apply == nil {
				return head, 0, nil
			}
		} else {
			var rec Record
			if json.Unmarshal(payload, &rec) != nil {
				return head, end, nil
			}
			apply(rec)
		}
		end += int64(len(line))
	}
}

// IsOurs reports whether a file without a whole first line can be a journal that a crash
// cut short.
func (j *Journal) IsOurs() bool { return IsOurs(j.f) }

// IsOurs is Journal.IsOurs of a journal that is not locked.
func IsOurs(f io.ReaderAt) bool {
	b := make([]byte, 9+len(start))
	n, _ := f.ReadAt(b, 0)
	b = b[:n]
	check, payload := b[:min(n, 9)], b[min(n, 9):]
	return len(bytes.Trim(b, "\x00")) == 0 ||
		len(bytes.Trim(check, "0123456789abcdef ")) == 0 && bytes.HasPrefix([]byte(start), payload)
}

// Begin clears the journal and starts it with head.
func (j *Journal) Begin(head Head) error {
	if err := j.f.Truncate(0); err != nil {
		return err
	}
	j.end = 0
	return appendLines(j, head)
}

// writeSize is the least size of a write in bytes, except the last.
const writeSize = 1 << 20

// Append adds records and makes them durable.
func (j *Journal) Append(records ...Record) error { return appendLines(j, records...) }

func appendLines[T any](j *Journal, lines ...T) error {
	if err := j.f.Truncate(j.end); err != nil {
		return err
	}
	var b []byte
	var payload bytes.Buffer
	encoder, at := json.NewEncoder(&payload), j.end
	for i, line := range lines {
		payload.Reset()
		if err := encoder.Encode(line); err != nil {
			return err
		}
		if b = seal(b, bytes.TrimSuffix(payload.Bytes(), []byte("\n"))); len(b) < writeSize && i < len(lines)-1 {
			continue
		}
		if _, err := j.f.WriteAt(b, at); err != nil {
			return err
		}
		at, b = at+int64(len(b)), b[:0]
	}
	if err := j.f.Sync(); err != nil {
		return err
	}
	j.end = at
	return nil
}

// seal appends a line that begins with its checksum.
func seal(b, payload []byte) []byte {
	b = fmt.Appendf(b, "%08x ", crc32.ChecksumIEEE(payload))
	return append(append(b, payload...), '\n')
}

// Seal returns lines with their checksums.
func Seal(lines ...any) (b []byte, err error) {
	for _, line := range lines {
		payload, err := json.Marshal(line)
		if err != nil {
			return nil, err
		}
		b = seal(b, payload)
	}
	return b, nil
}

// Unseal decodes a line, and reports whether it is whole.
func Unseal(line []byte, value any) bool {
	payload, ok := unseal(line)
	return ok && json.Unmarshal(payload, value) == nil
}

func unseal(line []byte) (payload []byte, ok bool) {
	check, payload, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	return payload, ok && string(check) == fmt.Sprintf("%08x", crc32.ChecksumIEEE(payload))
}

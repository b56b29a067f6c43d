package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"

	"dsmoe/convert/remote"
)

// uploads writes an object in parts, stops, goes on, and reads back what was stored, whatever fails meanwhile.
func uploads(environment []string) error {
	for _, e := range environment {
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, "AWS_") {
			os.Setenv(name, value)
		}
	}
	const part = 5 << 20
	data := make([]byte, 3*part+12345)
	chacha := rand.NewChaCha8([32]byte{1})
	chacha.Read(data)
	sent := 0
	for range 2 { // the second run continues the first
		s, err := remote.OpenStore("s3://models/out dir")
		if err != nil {
			return err
		}
		u, err := s.Upload(".dsmoe.partial/large.bin", int64(len(data)), part)
		if err != nil {
			return err
		}
		for i := 0; i < 4 && sent < 6; i++ {
			if u.Has(i) {
				continue
			}
			if sent++; sent == 3 {
				break
			}
			if err := u.Send(i, data[i*part:min((i+1)*part, len(data))]); err != nil {
				return err
			}
		}
		if sent == 3 {
			continue
		}
		if err := errors.Join(u.Finish(), s.Copy(".dsmoe.partial/large.bin", "large.bin", int64(len(data))),
			s.Delete(".dsmoe.partial/large.bin"), s.Put("config.json", []byte("{}")),
			s.PutNew("a", []byte("1")), s.PutNew("a", []byte("1"))); err != nil {
			return err
		}
		if err := s.PutNew("a", []byte("2")); !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("an object was overwritten: %w", err)
		}
	}
	d, _, err := remote.Open("s3://models/out dir", func(string) bool { return false }, nil)
	if err != nil {
		return err
	}
	names, err := d.List("")
	if err != nil || fmt.Sprint(names) != "[a config.json large.bin]" || sent != 5 {
		return fmt.Errorf("%d parts sent, %v: %w", sent, names, err)
	}
	f, err := d.Data("large.bin")
	if err != nil {
		return err
	}
	got := make([]byte, len(data))
	if _, err := f.ReadAt(got, 0); err != nil && err != io.EOF {
		return err
	}
	if !bytes.Equal(got, data) {
		return errors.New("other bytes are read than were written")
	}
	return nil
}

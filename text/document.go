package text

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// WriteJSON writes a report as one JSON document in the form of encoding/json, indented by two
// spaces. NaN and infinities, which JSON lacks, become null.
func WriteJSON(w io.Writer, document any) error {
	finite := json.MarshalToFunc(func(e *jsontext.Encoder, v float64) error {
		if v-v == 0 {
			return errors.ErrUnsupported // the default marshals v
		}
		return e.WriteToken(jsontext.Null)
	})
	data, err := json.Marshal(document, jsonv1.DefaultOptionsV1(), jsontext.EscapeForHTML(false),
		jsontext.WithIndent("  "), json.WithMarshalers(finite))
	if err == nil {
		_, err = w.Write(append(data, '\n'))
	}
	return err
}

// Figure returns v in a format of package fmt, such as "%.3g"; "infinite", "-infinite" or "not a
// number" if v is not finite.
func Figure(format string, v float64) string {
	switch {
	case math.IsNaN(v):
		return "not a number"
	case math.IsInf(v, 1):
		return "infinite"
	case math.IsInf(v, -1):
		return "-infinite"
	}
	return fmt.Sprintf(format, v)
}

// SyntaxCause returns why a text is no JSON.
func SyntaxCause(err *jsontext.SyntacticError) string {
	cause := err.Err.Error()
	if strings.Contains(cause, `'\ufeff'`) {
		cause = byteOrderMark
	}
	return cause
}

const byteOrderMark = "a byte order mark (BOM), which JSON does not allow; save the file as UTF-8 without one"

// JSONCause returns why encoding/json does not read a text.
func JSONCause(data []byte, err error) string {
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return byteOrderMark
	}
	return err.Error()
}

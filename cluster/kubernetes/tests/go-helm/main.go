// Renders the templates of a Helm chart with the engine that Helm has them from, Go's text/template. Of the functions that
// Helm adds it has those that our chart calls.
//
//	go-helm CHART < {"Values": {…}, "Release": {"Namespace": "…"}}
//
// It prints each template behind a line "---", or the error on standard error with exit status 1.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

func main() {
	if err := render(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func render(chart string) error {
	var with map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&with); err != nil {
		return err
	}
	all := template.New("chart").Option("missingkey=error")
	all.Funcs(template.FuncMap{
		"include": func(name string, with any) (string, error) {
			var text strings.Builder
			err := all.ExecuteTemplate(&text, name, with)
			return text.String(), err
		},
		"toJson": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
		"sha256sum": func(text string) string {
			sum := sha256.Sum256([]byte(text))
			return hex.EncodeToString(sum[:])
		},
		"contains": func(part, text string) bool { return strings.Contains(text, part) },
		"fail":     func(why string) (string, error) { return "", errors.New(why) },
	})
	files, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	if err != nil {
		return err
	}
	if _, err := all.ParseFiles(files...); err != nil {
		return err
	}
	for _, file := range files {
		name := filepath.Base(file)
		if strings.HasPrefix(name, "_") {
			continue
		}
		fmt.Println("---")
		if err := all.ExecuteTemplate(os.Stdout, name, with); err != nil {
			return err
		}
	}
	return nil
}
